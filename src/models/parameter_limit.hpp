// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fsdp/base/error.hpp"

namespace fsdp::models {

/// Sizes that are each in their range may still make more parameters than can be counted in bytes.
/// @throws Error kInvalidArgument
inline void check_parameter_count(double count) {
  constexpr double kMost = 1e15;
  FSDP_CHECK(count <= kMost, ErrorCode::kInvalidArgument, "model: about ", count,
             " parameters, must be at most ", kMost);
}

}  // namespace fsdp::models
