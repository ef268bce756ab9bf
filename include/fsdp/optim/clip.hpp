// SPDX-License-Identifier: Apache-2.0
/// Clipping by the norm of the whole gradient, which no rank holds.
#pragma once

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp {

/// The 2-norm of the gradients over all ranks and parameters, the same on every rank; parameters
/// without a gradient and padding do not count. Accumulated in fp64.
/// @collective all ranks @blocks until every rank is here; one number moves
double grad_norm(const Sharded& sharded);

/// Scales all gradients so that their global 2-norm is at most `max_norm`, as
/// torch::nn::utils::clip_grad_norm_ does for a whole model, and returns the norm before clipping.
/// A norm that is not finite scales nothing. Costs a pass over this rank's gradients, and a second
/// one when they are scaled.
/// @collective all ranks @blocks @throws Error kInvalidArgument unless max_norm is positive
double clip_grad_norm_(Sharded& sharded, double max_norm);

}  // namespace fsdp
