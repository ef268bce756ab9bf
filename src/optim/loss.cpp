// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/loss.hpp"

#include "fsdp/comm/mean.hpp"

namespace fsdp {

at::Tensor global_mean_loss(const at::Tensor& local_sum, double local_count, const World& world) {
  // Every rank learns of a wrong count, so that all throw or none does. The count is all that is
  // needed before backward; reading the sum would make a GPU wait.
  const double total =
      mean_over_ranks(world, /*value=*/0, local_count, "global_mean_loss").total_weight();
  return local_sum.mul(static_cast<double>(world.size()) / total);
}

}  // namespace fsdp
