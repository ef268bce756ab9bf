// SPDX-License-Identifier: Apache-2.0
/// Times training steps of one GPT shape: `plain` is LibTorch alone in one process on the global
/// batch, `sharded` is the same through fully_shard, each rank on its part. Prints one JSON line
/// with the median of the step times. bench/step.sh alternates the two.
#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "fsdp/models/gpt.hpp"

namespace {

struct Shape {
  std::int64_t width, layers, heads, sequence, global_batch;
};

const std::map<std::string, Shape> kShapes = {
    {"default", {128, 4, 4, 128, 32}},
    {"compute", {384, 6, 6, 256, 8}},
    {"communication", {768, 12, 12, 64, 2}},
};

/// AdamW on whole weights by the same fused kernel that fsdp::optim::AdamW uses on shards.
class PlainAdamW {
 public:
  explicit PlainAdamW(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      first_.push_back(torch::zeros_like(parameter));
      second_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}));
    }
  }
  void step() {
    torch::NoGradGuard no_grad;
    std::vector<at::Tensor> grads;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      steps_[i] += 1;
      grads.push_back(parameters_[i].grad());
    }
    at::_fused_adamw_(parameters_, grads, first_, second_, {}, steps_, 1e-4, 0.9, 0.999, 0.01, 1e-8,
                      false, false);
  }
  void zero_grad() {
    for (at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().reset();
    }
  }

 private:
  std::vector<at::Tensor> parameters_, first_, second_, steps_;
};

template <class Step>
double median_ms(int steps, Step&& step) {
  std::vector<double> times;
  for (int i = 0; i < steps + 2; ++i) {  // two to warm up and to record the order
    const auto begin = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (i >= 2) {
      times.push_back(time.count());
    }
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 || !kShapes.contains(argv[2])) {
    std::fprintf(stderr,
                 "usage: bench_step plain|slots|aliased|shm|shm-slots "
                 "default|compute|communication STEPS THREADS\n");
    return 2;
  }
  const std::string mode = argv[1];
  const Shape shape = kShapes.at(argv[2]);
  const int steps = std::atoi(argv[3]);
  torch::set_num_threads(std::atoi(argv[4]));

  fsdp::models::GPTConfig config;
  config.width = shape.width;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.context = shape.sequence;
  torch::manual_seed(1);
  fsdp::models::GPT model(config);
  const at::Tensor tokens =
      torch::randint(0, config.vocab, {shape.global_batch, shape.sequence + 1});
  const bool is_shm = mode.starts_with("shm");
  const fsdp::World world = fsdp::init({.transport = is_shm ? "shm" : "gloo"});
  const std::int64_t rows = shape.global_batch / world.size();
  const at::Tensor mine = tokens.narrow(0, rows * world.rank(), rows);
  const at::Tensor x = mine.narrow(1, 0, shape.sequence).contiguous();
  const at::Tensor y = mine.narrow(1, 1, shape.sequence).contiguous();

  double time_ms = 0;
  double loss_value = 0;
  const auto train = [&](auto& optimizer) {
    time_ms = median_ms(steps, [&] {
      optimizer.zero_grad();
      const at::Tensor loss = model->forward(x, y);
      loss.backward();
      optimizer.step();
      loss_value = loss.item<double>();
    });
  };
  if (mode == "plain") {
    PlainAdamW optimizer(model->parameters());
    train(optimizer);
  } else {
    fsdp::Options options{.units = fsdp::units_of<fsdp::models::Block>(), .print_promise = false};
    options.store = mode == "aliased" ? fsdp::Store::kAliased
                    : mode == "shm"   ? fsdp::Store::kAuto
                                      : fsdp::Store::kSlots;
    fsdp::Sharded sharded = fsdp::fully_shard(model, world, options);
    fsdp::optim::AdamW optimizer(sharded, {.lr = 1e-4, .weight_decay = 0.01});
    train(optimizer);
  }
  at::Tensor mean = torch::full({1}, loss_value / world.size(), torch::kDouble);
  world.communicator().all_reduce(mean, {.name = "loss"});
  if (world.rank() == 0) {
    std::printf(
        "{\"mode\": \"%s\", \"shape\": \"%s\", \"ranks\": %d, \"threads\": %s, \"step_ms\": %.3f, "
        "\"loss\": %.6f}\n",
        mode.c_str(), argv[2], world.size(), argv[4], time_ms, mean.item<double>());
  }
  return 0;
}
