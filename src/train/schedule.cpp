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
  const std::int64_t decay_steps = std::max<std::int64_t>(1, steps - 1 - warmup);
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(decay_steps));
  return min_lr + (lr - min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fsdp::train
