// SPDX-License-Identifier: Apache-2.0
/// The learning rate of each step: a linear warm-up, then half a cosine down to a floor. Loshchilov
/// and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017), without restarts.
#pragma once

#include <cstdint>

namespace fsdp::train {

/// The rate as a function of the step.
struct Schedule {
  double lr = 1e-3;         ///< the highest rate, reached at the end of the warm-up
  double min_lr = 1e-4;     ///< the rate of the last step
  std::int64_t warmup = 0;  ///< steps of warm-up
  std::int64_t steps = 1;   ///< steps of the whole run

  /// The rate of step `step`, counted from 0. Never 0 during the warm-up, so that no step is
  /// wasted.
  double at(std::int64_t step) const;
};

}  // namespace fsdp::train
