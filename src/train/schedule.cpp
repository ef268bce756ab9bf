// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp::train {

double Schedule::at(std::int64_t step) const {
  if (step < warmup) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  // Where the fall begins; the last step has the lowest rate.
  const std::int64_t begin =
      kind == ScheduleKind::kWsd ? std::max(warmup, steps - decay_steps - 1) : warmup;
  const std::int64_t falling = std::max<std::int64_t>(1, steps - 1 - begin);
  const double progress =
      std::clamp(static_cast<double>(step - begin) / static_cast<double>(falling), 0.0, 1.0);
  switch (kind) {
    case ScheduleKind::kConstant: return lr;
    case ScheduleKind::kLinear:
    case ScheduleKind::kWsd: return lr + (min_lr - lr) * progress;
    case ScheduleKind::kCosine: break;
  }
  return min_lr + (lr - min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fsdp::train
