// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/loss.hpp"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp {

at::Tensor global_mean_loss(const at::Tensor& local_sum, double local_count, const World& world) {
  double total = 0;
  double refusals = 0;
  {
    c10::NoGradGuard no_grad;
    // Every rank learns of a wrong count, so that all throw or none does.
    at::Tensor sums = at::zeros({2}, at::kDouble);
    auto* values = sums.mutable_data_ptr<double>();
    values[0] = local_count;
    values[1] = local_count >= 0 ? 0 : 1;
    world.communicator().all_reduce(sums, {.name = "global_mean_loss"});
    total = values[0];
    refusals = values[1];
  }
  FSDP_CHECK(refusals == 0 && total > 0, ErrorCode::kInvalidArgument,
             "[global_mean_loss] this rank counts ", local_count, " and all ranks together ", total,
             ", and ", refusals,
             " ranks count less than nothing: there is nothing to take the mean of");
  return local_sum * (static_cast<double>(world.size()) / total);
}

}  // namespace fsdp
