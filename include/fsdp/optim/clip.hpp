// SPDX-License-Identifier: Apache-2.0
/// Clipping by the norm of the whole gradient, which no rank holds, or element by element.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp {

/// The p-norm of the gradients over all ranks and parameters, the same bits on every rank: p > 0,
/// infinity for the largest absolute value. Each element counts once, on any mesh; parameters
/// without a gradient (frozen, unused, ignored) and padding do not count. Accumulated in fp64
/// whatever the gradients' type. A gradient that is not finite gives a norm that is not finite.
/// @collective all ranks @blocks until every rank is here; one number per rank moves
/// @throws Error kInvalidArgument unless p > 0, before anything is sent
double grad_norm(const Sharded& sharded, double p = 2);

/// One norm over several sharded modules (a generator and its encoder, parts of a pipeline) and
/// over `whole`: parameters outside of them that every rank holds whole, with gradients that are
/// equal on all ranks, such as Options::ignore leaves. They count once. @collective all ranks
double grad_norm(const std::vector<Sharded>& shardeds, double p = 2,
                 const std::vector<at::Tensor>& whole = {});

/// Scales all gradients so that their global p-norm is at most `max_norm`, as
/// torch::nn::utils::clip_grad_norm_ does for a whole model, and returns the norm before clipping.
/// A norm that is not finite scales nothing: then all ranks skip the step, see skip_step(); of
/// `whole` parameters the gradients stay. Costs a pass over this rank's gradients, and a second one
/// when they are scaled. With a loss scale, unscale first.
/// @collective all ranks @blocks @throws Error kInvalidArgument unless max_norm and p are positive
double clip_grad_norm_(const Sharded& sharded, double max_norm, double p = 2);

/// The same for several modules and whole parameters, by one norm and one factor.
double clip_grad_norm_(const std::vector<Sharded>& shardeds, double max_norm, double p = 2,
                       const std::vector<at::Tensor>& whole = {});

/// Clamps each element of the gradients to [-max_value, max_value]. Local.
/// @throws Error kInvalidArgument unless max_value is positive
void clip_grad_value_(const Sharded& sharded, double max_value);

}  // namespace fsdp
