// SPDX-License-Identifier: Apache-2.0
/// What a program may do with the shards' handles: give them other memory, write through pointers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/strategy_cases.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

constexpr double kRate = 0.1;

/// A weight of ones, whose gradient is one on every rank.
struct Ones : nn::Module {
  explicit Ones(std::int64_t numel = 6)
      : weight(register_parameter("weight", torch::ones(numel))) {}
  at::Tensor loss() { return weight.sum(); }
  /// What a forward sees of each element.
  double seen() {
    const torch::NoGradGuard no_grad;
    const at::Tensor values = weight * 1.0;
    EXPECT_EQ(values.min().item<double>(), values.max().item<double>());
    return values.mean().item<double>();
  }
  at::Tensor weight;
};

/// One rank of a run with it.
struct Trained {
  Trained(const World& world, Options options = test_options({}))
      : module(std::make_shared<Ones>()),
        sharded(fully_shard(module, world, std::move(options))),
        shards(sharded.parameters()),
        optimizer(shards, torch::optim::SGDOptions(kRate)) {}
  void backward() {
    optimizer.zero_grad();
    module->loss().backward();
  }
  void step() {
    backward();
    optimizer.step();
  }
  std::shared_ptr<Ones> module;
  Sharded sharded;
  std::vector<at::Tensor> shards;
  torch::optim::SGD optimizer;
};

std::vector<Case> two_and_four_ranks() {
  std::vector<Case> all = cases({2});
  for (const Case& of : cases({4})) {
    if (of.replicate == 2) {
      all.push_back(of);
    }
  }
  return all;
}

/// Each strategy, store and mesh, weights in float32 and in bfloat16.
void with_each_strategy(
    const std::function<void(const World&, const Options&, double near)>& body) {
  for (const Case& of : two_and_four_ranks()) {
    for (const bool is_low : {false, true}) {
      SCOPED_TRACE(of.name() + (is_low ? " bfloat16" : ""));
      run_threads(of.size(), [&](World world) {
        Options options = options_of(of, world, 128);
        options.units = {};
        if (is_low) {
          options.precision.param = at::kBFloat16;
        }
        body(world, options, is_low ? 4e-3 : 1e-6);
      });
    }
  }
}

void clone_memory_of(const std::vector<at::Tensor>& shards) {
  for (at::Tensor shard : shards) {
    shard.set_data(shard.clone());
  }
}

TEST(ShardHandles, Fault141_WhatWasGivenOtherMemoryTrainsOn) {
  with_each_strategy([](const World& world, const Options& options, double near) {
    Trained run(world, options);
    clone_memory_of(run.shards);
    for (int step = 0; step < 3; ++step) {
      run.step();
    }
    EXPECT_NEAR(run.module->seen(), 0.7, near);
    const auto whole = run.sharded.full_parameters();
    EXPECT_NEAR(run.module->weight.mean().item<double>(), 0.7, 1e-6);
  });
}

TEST(ShardHandles, Fault141_AveragesThatSetDataSwapsInAreSeenAndSwappedOut) {
  with_each_strategy([](const World& world, const Options& options, double near) {
    Trained run(world, options);
    std::vector<at::Tensor> averages;
    for (const at::Tensor& shard : run.shards) {
      averages.push_back(shard.detach().clone().fill_(3.0));
    }
    run.step();
    for (int swap = 0; swap < 2; ++swap) {
      std::vector<at::Tensor> kept;
      for (std::size_t i = 0; i < run.shards.size(); ++i) {
        kept.push_back(run.shards[i].detach().clone());
        run.shards[i].set_data(averages[i]);
      }
      EXPECT_NEAR(run.module->seen(), 3.0, near);
      for (std::size_t i = 0; i < run.shards.size(); ++i) {
        run.shards[i].set_data(kept[i]);
      }
      EXPECT_NEAR(run.module->seen(), 0.9 - 0.1 * swap, near);
      run.step();
    }
    EXPECT_NEAR(run.module->seen(), 0.7, near);
    for (const at::Tensor& average : averages) {
      EXPECT_TRUE(torch::equal(average, torch::full_like(average, 3.0))) << "was trained";
    }
  });
}

TEST(ShardHandles, Fault141_SetAndVectorsReachTheWeights) {
  run_threads(2, [](World world) {
    Trained run(world);
    run.step();
    nn::utils::vector_to_parameters(torch::full({3}, 5.0), run.shards);
    EXPECT_NEAR(run.module->seen(), 5.0, 1e-6);
    run.step();
    EXPECT_NEAR(run.module->seen(), 4.9, 1e-6);
    {
      const torch::NoGradGuard no_grad;
      run.shards[0].set_(torch::full({3}, 2.0));
    }
    run.step();
    EXPECT_NEAR(run.module->seen(), 1.9, 1e-6);
  });
}

TEST(ShardHandles, Fault141_TheLibrarysOptimizerAndFullWeightsFollow) {
  run_threads(2, [](World world) {
    Trained run(world);
    optim::SGD optimizer(run.sharded, {.lr = kRate});
    for (int step = 0; step < 3; ++step) {
      clone_memory_of(run.shards);
      run.backward();
      clone_memory_of(run.shards);
      optimizer.step();
    }
    clone_memory_of(run.shards);
    const auto whole = run.sharded.full_parameters();
    EXPECT_NEAR(run.module->weight.mean().item<double>(), 0.7, 1e-6);
  });
}

/// std::swap of data(): in the end the shard's own memory belongs to what was swapped out.
TEST(ShardHandles, Fault141_MemoryThatIsKeptToBeSwappedBackIsRefused) {
  run_threads(2, [](World world) {
    Trained run(world);
    run.step();
    const at::Tensor kept = run.shards[0].data();
    run.shards[0].set_data(torch::full({3}, 3.0));
    const std::string error = error_of([&] { run.module->seen(); });
    EXPECT_THAT(error, HasSubstr("\"weight\""));
    EXPECT_THAT(error, HasSubstr("swapped back"));
    EXPECT_THAT(error, HasSubstr("clone()"));
    run.shards[0].set_data(kept);  // back where it was: nothing is lost
    EXPECT_NEAR(run.module->seen(), 0.9, 1e-6);
  });
}

TEST(ShardHandles, Fault141_AnotherSizeOrTypeIsRefused) {
  run_threads(2, [](World world) {
    Trained run(world);
    const at::Tensor kept = run.shards[0].detach().clone();
    run.shards[0].set_data(torch::ones({6}));
    std::string error = error_of([&] { run.module->seen(); });
    EXPECT_THAT(error, HasSubstr("\"weight\" is now CPUFloatType [6]"));
    EXPECT_THAT(error, HasSubstr("was CPUFloatType [3]"));
    run.shards[0].set_data(kept.to(at::kDouble));
    error = error_of([&] { run.module->seen(); });
    EXPECT_THAT(error, HasSubstr("is now CPUDoubleType [3]"));
    run.shards[0].set_data(kept);
    EXPECT_NEAR(run.module->seen(), 1.0, 1e-6);
  });
}

TEST(ShardHandles, Fault141_BetweenForwardAndBackwardItIsAWrite) {
  run_threads(2, [](World world) {
    Trained run(world);
    const at::Tensor loss = (run.module->weight * run.module->weight).sum();
    run.shards[0].set_data(torch::full({3}, 3.0));
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("changed between its forward"));
  });
}

TEST(ShardHandles, Fault141_AGradientThatIsGivenOtherMemoryIsAddedTo) {
  run_threads(2, [](World world) {
    Trained run(world);
    run.backward();
    run.shards[0].grad().set_data(torch::full({3}, 5.0));
    const FlatShard flat = run.sharded.shard_access()->flats().front();
    EXPECT_EQ(flat.grad.max().item<double>(), 5.0);
    run.shards[0].grad().set_data(torch::full({3}, 7.0));
    run.module->loss().backward();  // adds one
    EXPECT_EQ(run.shards[0].grad().mul(1).min().item<float>(), 8.0F);
    run.shards[0].grad().set_data(torch::full({3}, 7.0));
    run.step();  // anew
    EXPECT_NEAR(run.module->seen(), 0.9, 1e-6);
  });
}

void write_through_pointers(const std::vector<at::Tensor>& shards, float value) {
  for (const at::Tensor& shard : shards) {
    auto* element = static_cast<float*>(shard.data_ptr());
    std::fill(element, element + shard.numel(), value);
  }
}

TEST(ShardHandles, Fault141_WritesThroughPointersAreSeenWhereThereIsNoCopy) {
  run_threads(2, [](World world) {
    Trained run(world);
    run.step();
    write_through_pointers(run.shards, 5);
    EXPECT_NEAR(run.module->seen(), 5, 1e-6);
    run.step();
    EXPECT_NEAR(run.module->seen(), 4.9, 1e-6);
  });
}

TEST(ShardHandles, Fault141_WritesThroughPointersThatAreMarkedAreSeenEverywhere) {
  with_each_strategy([](const World& world, const Options& options, double near) {
    Trained run(world, options);
    run.step();
    write_through_pointers(run.shards, 5);
    run.sharded.mark_written();
    EXPECT_NEAR(run.module->seen(), 5, 8 * near);
    run.step();
    EXPECT_NEAR(run.module->seen(), 4.9, 8 * near);
  });
}

}  // namespace
