// SPDX-License-Identifier: Apache-2.0
/// What another project's first program does: shard, take one step, read the weights.
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "fsdp/fsdp.hpp"

int main() {
  fsdp::World world = fsdp::init();
  torch::nn::Linear linear(3, 2);
  auto sharded = fsdp::fully_shard(linear, world, {.debug = {.print_promise = false}});
  fsdp::optim::AdamW optimizer(sharded, {.lr = 0.1});
  linear->forward(torch::ones({4, 3})).sum().backward();
  optimizer.step();
  const auto count = sharded.named_parameters().size();
  std::printf("consumer: %zu parameters on rank %d of %d\n", count, world.rank(), world.size());
  return count == 2 && optimizer.steps() == 1 ? 0 : 1;
}
