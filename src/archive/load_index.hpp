// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fsdp/archive/index.hpp"

namespace fsdp::archive::detail {

/// Reads the index of the checkpoint at `path`. @throws Error kNotFound, kIo and parse_index()'s
Index load_index(const std::string& path);

/// Checks that each file that the index names has its size; reads none.
/// @throws Error kCorrupt naming the first that is missing or has another size
void check_file_sizes(const std::string& path, const Index& index);

}  // namespace fsdp::archive::detail
