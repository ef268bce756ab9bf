// SPDX-License-Identifier: Apache-2.0
/// What the writer and the reader of an index agree on.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/archive/index.hpp"

namespace fsdp::archive::detail {

inline constexpr const char* kFormatName = "fsdp-checkpoint";
inline constexpr std::int64_t kVersion = 1;

/// Closes an object by a last member that holds the sum of every byte before it.
std::string with_sum(const std::string& open_object);

/// Checks that sum. @throws Error kCorrupt
void check_sum(const std::string& path, std::string_view text);

/// Whether a file can have that name in a checkpoint: no directory in it, and nothing hidden.
bool is_plain_name(const std::string& name);

/// Checks names, sizes and that tensors fill their files. @throws Error kCorrupt
void check_index(const std::string& path, const Index& index);

}  // namespace fsdp::archive::detail
