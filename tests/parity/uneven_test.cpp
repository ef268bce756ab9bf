// SPDX-License-Identifier: Apache-2.0
/// Ranks with unequal numbers of batches, and layers that are left out at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/four_layers.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
namespace nn = torch::nn;

constexpr int kBatches[] = {4, 4, 8, 4};
constexpr int kRanks = 4;

/// The batch of a step; a rank that ran out takes its last one again.
at::Tensor batch(int rank, int step) { return input(rank, std::min(step, kBatches[rank] - 1)); }

void set_weights(FourLayers& model) {
  torch::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((steps * 0.7 + ++phase).sin().mul(0.6).view(parameter.sizes()));
  }
}

/// One process: each step's mean over the ranks that have a batch.
std::vector<at::Tensor> train_reference(int steps) {
  FourLayers model;
  set_weights(model);
  const auto optimizer = sgd_with_momentum()(model.parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    double active = 0;
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < kRanks; ++rank) {
      const double weight = step < kBatches[rank] ? 1 : 0;
      sum = sum + model.loss(batch(rank, step)) * weight;
      active += weight;
    }
    (sum / active).backward();
    optimizer->step();
  }
  return model.parameters();
}

void expect_parity_with_uneven_batches(World world, Uneven mode, int expected_steps) {
  const auto model = std::make_shared<FourLayers>();
  set_weights(*model);
  Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
  const auto optimizer = sgd_with_momentum()(sharded.parameters());
  int steps = 0;
  for (;; ++steps) {
    const StepAgreement found = agree_on_step(world, steps < kBatches[world.rank()], mode);
    if (!found.go_on) {
      break;
    }
    optimizer->zero_grad();
    const at::Tensor loss = model->loss(batch(world.rank(), steps));
    sharded.set_gradient_divisor(found.active);
    (loss * found.weight).backward();
    optimizer->step();
  }
  EXPECT_EQ(steps, expected_steps);
  const std::vector<at::Tensor> expected = train_reference(expected_steps);
  const auto full = sharded.full_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE((model->parameters()[i] - expected[i]).abs().max().item<double>(), 1e-12) << i;
  }
}

TEST(Uneven, Fault002_StopModeEndsAllAtTheFourthStep) {
  on_all_transports(
      kRanks, 20, [](World world) { expect_parity_with_uneven_batches(world, Uneven::kStop, 4); });
}

TEST(Uneven, Fault002_FillModeGoesOnWithWeightZeroToTheEighthStep) {
  on_all_transports(
      kRanks, 20, [](World world) { expect_parity_with_uneven_batches(world, Uneven::kFill, 8); });
}

struct SixLayers : nn::Module {
  SixLayers() : head(register_parameter("head", torch::ones({3}))) {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(3, 3)));
    }
  }
  at::Tensor loss(const std::vector<bool>& skips) {
    at::Tensor x = torch::ones({2, 3});
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = skips[i] ? x : x + torch::tanh(layers[i](x));
    }
    return (x * head).sum();
  }
  std::vector<nn::Linear> layers;
  at::Tensor head;
};

constexpr int kSteps = 20;
constexpr double kDropped = 0.5;

TEST(Uneven, Fault003_TheSharedSeedSkipsTheSameLayersOnAllRanks) {
  on_all_transports(2, 10, [](World world) {
    // What a rank draws for itself does not matter: dropout may differ.
    torch::manual_seed(static_cast<std::uint64_t>(world.rank()));
    const auto model = std::make_shared<SixLayers>();
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    int skipped = 0;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<bool> skips(model->layers.size());
      double mask = 0;
      for (std::size_t layer = 0; layer < skips.size(); ++layer) {
        skips[layer] = shared_uniform(5, static_cast<std::uint64_t>(step), layer) < kDropped;
        mask = 2 * mask + (skips[layer] ? 1 : 0);
        skipped += skips[layer] ? 1 : 0;
      }
      EXPECT_EQ(mean_over_ranks(world, mask).get(), mask) << step;
      model->loss(skips).backward();
      sharded.zero_grad();
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
    }
    EXPECT_GT(skipped, 30);
    EXPECT_LT(skipped, 90);
  });
}

TEST(Uneven, Fault003_SeedsOfEachRankEndInAnErrorWithinTheTimeOut) {
  on_all_transports(2, 3, [](World world) {
    std::mt19937 own(static_cast<unsigned>(world.rank()));
    const auto model = std::make_shared<SixLayers>();
    const Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = error_of([&] {
      for (int step = 0; step < kSteps; ++step) {
        std::vector<bool> skips(model->layers.size());
        std::generate(skips.begin(), skips.end(),
                      [&] { return std::uniform_real_distribution<>()(own) < kDropped; });
        model->loss(skips).backward();
      }
      world.barrier();
    });
    EXPECT_THAT(
        error, AnyOf(HasSubstr("[mismatch]"), HasSubstr("[time-out]"), HasSubstr("[peer failed]")));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 3 + 2);
  });
}

}  // namespace
}  // namespace fsdp::test
