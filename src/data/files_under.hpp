// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fsdp::data::detail {

/// The regular files below a directory in the order of their paths; hidden names are left out.
/// @throws Error kIo
std::vector<std::string> files_under(const std::string& root);

}  // namespace fsdp::data::detail
