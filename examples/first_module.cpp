// SPDX-License-Identifier: Apache-2.0
/// Trains a small network, sharded over all ranks. Runs alone as well as under a launcher:
///
///     first_module
///     fsdp run -n 2 first_module
///
/// Both print the same losses: each rank takes its part of one global batch, and the gradients are
/// averaged over the ranks. docs/tutorials/first-module.md explains it line by line.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>

#include "fsdp/fsdp.hpp"

namespace {

// begin model
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return x + down->forward(torch::gelu(up->forward(norm->forward(x))));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t width, int blocks)
      : in(register_module("in", torch::nn::Linear(2, width))),
        middle(register_module("middle", torch::nn::Sequential())),
        out(register_module("out", torch::nn::Linear(width, 1))) {
    for (int i = 0; i < blocks; ++i) {
      middle->push_back(Block(width));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(middle->forward(in->forward(x)));
  }

  torch::nn::Linear in;
  torch::nn::Sequential middle;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);
// end model

constexpr std::int64_t kGlobalBatch = 64;
constexpr int kSteps = 60;

void train() {
  // begin shard
  fsdp::World world = fsdp::init();
  torch::manual_seed(7);
  Net net(/*width=*/64, /*blocks=*/4);
  auto sharded = fsdp::fully_shard(net, world, {.units = fsdp::units_of<Block>()});
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(3e-3));
  // end shard

  // begin loop
  const std::int64_t own = kGlobalBatch / world.size();
  double first_loss = 0.0;
  double last_loss = 0.0;
  for (int step = 1; step <= kSteps; ++step) {
    // Every rank draws the same global batch and takes its own rows of it.
    const auto x = (torch::rand({kGlobalBatch, 2}) * 4 - 2).narrow(0, world.rank() * own, own);
    const auto y = torch::sin(x.sum(1, /*keepdim=*/true));

    auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    fsdp::clip_grad_norm_(sharded, 1.0);
    optimizer.step();
    optimizer.zero_grad();

    auto mean = loss.detach().clone();
    world.transport().all_reduce(mean, {.name = "loss"});
    last_loss = mean.item<double>() / world.size();
    first_loss = step == 1 ? last_loss : first_loss;
    if (world.rank() == 0 && (step == 1 || step % 20 == 0)) {
      std::printf("step %3d  loss %.4f\n", step, last_loss);
    }
  }
  // end loop
  if (!(last_loss < 0.5 * first_loss)) {
    fsdp::fail(fsdp::ErrorCode::kInternal, "loss went from ", first_loss, " to ", last_loss);
  }
}

}  // namespace

int main() {
  try {
    train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "first_module: %s\n", error.what());
    return 1;
  }
}
