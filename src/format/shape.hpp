// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::format::detail {

/// Elements times bytes; nothing when a size is negative or the product leaves int64.
std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape,
                                       std::int64_t itemsize);

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace fsdp::format::detail
