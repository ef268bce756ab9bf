// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/loss.hpp"

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp {

at::Tensor global_mean_loss(const at::Tensor& local_sum, double local_count, const World& world) {
  double total = 0;
  {
    c10::NoGradGuard no_grad;
    at::Tensor count = at::full({1}, local_count, at::kDouble);
    world.communicator().all_reduce(count, {.name = "global_mean_loss"});
    total = count.item<double>();
  }
  FSDP_CHECK(local_count >= 0 && total > 0, ErrorCode::kInvalidArgument,
             "[global_mean_loss] this rank counts ", local_count, " and all ranks together ", total,
             ": there is nothing to take the mean of");
  return local_sum * (static_cast<double>(world.size()) / total);
}

}  // namespace fsdp
