// SPDX-License-Identifier: Apache-2.0
/// From what one rank sees to the mean over all ranks, with the factor that the engine expects.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/comm/world.hpp"

namespace fsdp {

/// The loss to call backward on when ranks hold different numbers of samples or tokens: local_sum *
/// size() / (sum of all counts). Averaged over ranks, as the engine averages gradients, that is the
/// mean over the global batch. Do not all-reduce a loss before backward instead: its gradient would
/// be divided by the number of ranks twice.
/// `local_sum` is a scalar that requires grad; `local_count` may be zero on some ranks.
/// @collective all ranks @blocks until every rank is here @throws Error kInvalidArgument when no
/// rank has anything to count, or any local_count is negative; on all ranks
at::Tensor global_mean_loss(const at::Tensor& local_sum, double local_count, const World& world);

}  // namespace fsdp
