// SPDX-License-Identifier: Apache-2.0
/// How ranks come to the same decision: whether there is another step when they hold different
/// numbers of batches, and what to leave out at random. Ranks that decided alone would part, and
/// the next collective would fail.
#pragma once

#include <cstdint>

#include "fsdp/comm/world.hpp"

namespace fsdp {

/// What happens when some ranks have a batch for this step and others have none.
enum class Uneven {
  kStop,  ///< all ranks stop; the remaining batches of the others are left out
  kFill,  ///< all go on until nobody has a batch; those without take part with weight 0
};

/// What agree_on_step() found, the same on all ranks except for `weight`.
struct StepAgreement {
  bool go_on = false;  ///< whether there is a step
  double weight = 0;   ///< 1 on a rank that has a batch, 0 on one that has none
  int active = 0;      ///< how many ranks have a batch
};

/// Asks all ranks whether there is another step; call it in front of each. In kFill a rank without
/// a batch runs the step on any valid one, for example its last. With equal batches the mean over
/// all samples of the step is trained by `loss * weight` and
/// `sharded.set_gradient_divisor(active)`.
/// @collective all ranks, with the same mode; an all-gather of 8 bytes per rank @blocks
/// @throws Error kMismatch when modes differ, else as comm::Work::wait()
StepAgreement agree_on_step(const World& world, bool has_batch, Uneven mode = Uneven::kStop);

/// A number in [0, 1) that depends on its arguments alone, so that all ranks draw the same without
/// asking each other: `if (shared_uniform(seed, step, layer) < p) skip`. Numbers of different
/// arguments are as good as independent. Local. Method: the output function of SplitMix64 (Steele,
/// Lea and Flood, "Fast splittable pseudorandom number generators", 2014), once an argument.
double shared_uniform(std::uint64_t seed, std::uint64_t step, std::uint64_t index);

}  // namespace fsdp
