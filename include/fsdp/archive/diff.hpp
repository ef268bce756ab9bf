// SPDX-License-Identifier: Apache-2.0
/// In what two sets of weights differ.
#pragma once

#include <string>
#include <vector>

namespace fsdp::archive {

/// Compares names, dtypes, shapes and every element of what two paths hold (WeightSource's kinds).
/// When both are checkpoints, also their step, optimizer and other tensors and values. Returns one
/// line a difference, with the largest absolute one where elements differ; nothing when all is
/// equal. @memory a constant buffer @throws as WeightSource
std::vector<std::string> diff_weights(const std::string& left, const std::string& right);

}  // namespace fsdp::archive
