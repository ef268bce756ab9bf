// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fsdp::archive::detail {

/// Refuses weights that lie in Python's pickles, as PyTorch writes them: a file, or a directory
/// that holds nothing better. Reading one can run any program.
/// @throws Error kUnsupported with the command that makes safetensors of them
void refuse_pickles(const std::string& path);

}  // namespace fsdp::archive::detail
