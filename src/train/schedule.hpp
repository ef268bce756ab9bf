// SPDX-License-Identifier: Apache-2.0
/// The learning rate of each step: a linear warm-up, then one of four curves. Half a cosine down to
/// a floor: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017),
/// without restarts. Warm-up, stable, decay: Hu et al., "MiniCPM" (2024).
#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace fsdp::train {

/// The rate as a function of the step.
struct Schedule {
  double lr = 1e-3;         ///< the highest rate, reached at the end of the warm-up
  double min_lr = 1e-4;     ///< the rate of the last step
  std::int64_t warmup = 0;  ///< steps of warm-up
  std::int64_t steps = 1;   ///< steps of the whole run
  ScheduleKind kind = ScheduleKind::kCosine;
  std::int64_t decay_steps = 0;  ///< kWsd: the last ones, over which it falls linearly

  /// kConstant stays at lr; kLinear falls from lr to min_lr over all steps; kWsd stays at lr up to
  /// the last `decay_steps`.
  /// The rate of step `step`, counted from 0. Never 0 during the warm-up, so that no step is
  /// wasted.
  double at(std::int64_t step) const;
};

}  // namespace fsdp::train
