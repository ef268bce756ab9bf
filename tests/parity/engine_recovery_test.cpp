// SPDX-License-Identifier: Apache-2.0
/// What a caught exception leaves: an error that all ranks saw heals by itself, one that only some
/// saw until world.recover() on all ranks. The step after it has the bits of one without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/four_layers.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
namespace nn = torch::nn;

constexpr int kRanks = 3;
constexpr double kTimeoutSeconds = 5;

/// The identity, unless it throws.
struct Fragile : Function<Fragile> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, bool in_forward) {
    (void)ctx;
    if (in_forward) {
      throw std::runtime_error("this rank's own");
    }
    return x.clone();
  }
  static variable_list backward(AutogradContext*, variable_list) {
    throw std::runtime_error("this rank's own");
  }
};

enum class Place { kForward, kHook, kFunctionForward, kFunctionBackward };
constexpr Place kPlaces[] = {Place::kForward, Place::kHook, Place::kFunctionForward,
                             Place::kFunctionBackward};

/// A step that throws in the middle of the model.
void throw_in_a_step(FourLayers& model, const at::Tensor& x, Place place) {
  at::Tensor y = model.layers[1](torch::tanh(model.layers[0](x)));
  switch (place) {
    case Place::kForward: throw std::runtime_error("this rank's own");
    case Place::kHook:
      y.register_hook([](const at::Tensor&) { throw std::runtime_error("this rank's own"); });
      break;
    case Place::kFunctionForward: y = Fragile::apply(y, true); break;
    case Place::kFunctionBackward: y = Fragile::apply(y, false); break;
  }
  (model.layers[3](model.layers[2](y)) * model.scale).square().sum().backward();
}

/// A model with its shards and optimizer on one rank.
struct Training {
  World world;
  std::shared_ptr<FourLayers> model = std::make_shared<FourLayers>();
  Sharded sharded;
  torch::optim::AdamW optimizer;

  Training(World world_in, Store store)
      : world(world_in),
        sharded(fully_shard(prepared(*model, model), world, options_for(store))),
        optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2)) {}

  void step(int number) {
    optimizer.zero_grad(/*set_to_none=*/true);
    model->loss(input(world.rank(), number)).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> shards() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& shard : sharded.parameters()) {
      copies.push_back(shard.detach().clone());
    }
    return copies;
  }

 private:
  static Options options_for(Store store) {
    Options options = test_options(units_of<nn::Linear>(), 0, /*prefetch=*/2);
    options.memory.store = store;
    return options;
  }
  static std::shared_ptr<FourLayers> prepared(FourLayers& of, std::shared_ptr<FourLayers> same) {
    torch::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& parameter : of.parameters()) {
      const at::Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
      parameter.copy_((steps * 0.7 + ++phase).sin().mul(0.6).view(parameter.sizes()));
    }
    return same;
  }
};

/// Three steps around `accident`, which comes after the first or the second; and the same without.
void expect_no_trace(World world, Store store, int after,
                     const std::function<void(Training&)>& accident) {
  const auto run = [&](bool has_accident) {
    Training training(world, store);
    for (int step = 0; step < 3; ++step) {
      training.step(step);
      if (has_accident && step == after) {
        accident(training);
      }
    }
    EXPECT_EQ(training.sharded.report().unsharded_numel, 0);
    return training.shards();
  };
  const auto expected = run(false);
  const auto actual = run(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "parameter " << i;
  }
}

void for_all_cases(World world, const std::function<void(Training&, Place)>& accident) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    for (const Place place : kPlaces) {
      for (const int after : {0, 1}) {
        SCOPED_TRACE(testing::Message() << "store " << static_cast<int>(store) << ", place "
                                        << static_cast<int>(place) << ", after step " << after);
        expect_no_trace(world, store, after,
                        [&](Training& training) { accident(training, place); });
      }
    }
  }
}

TEST(EngineRecovery, Fault008_WhatAllRanksThrowHealsByItself) {
  on_all_transports(kRanks, kTimeoutSeconds, [](World world) {
    for_all_cases(world, [](Training& training, Place place) {
      EXPECT_THAT(error_of([&] {
                    throw_in_a_step(*training.model, input(training.world.rank(), 7), place);
                  }),
                  HasSubstr("this rank's own"));
    });
    EXPECT_EQ(world.job().generation(), 0U);
  });
}

TEST(EngineRecovery, Fault008_WhatOneRankThrowsBeforeAnyCollectiveHealsByItself) {
  on_all_transports(kRanks, kTimeoutSeconds, [](World world) {
    expect_no_trace(world, Store::kSlots, 1, [](Training& training) {
      if (training.world.rank() == 1) {
        at::Tensor x = input(1, 7).requires_grad_();
        EXPECT_THAT(error_of([&] { Fragile::apply(x, true); }), HasSubstr("this rank's own"));
        EXPECT_THAT(error_of([&] { Fragile::apply(x, false).sum().backward(); }),
                    HasSubstr("this rank's own"));
        // Views and detached aliases of a weight gather nothing.
        EXPECT_THAT(
            error_of([&] { Fragile::apply(training.model->layers[2]->weight.t().detach(), true); }),
            HasSubstr("this rank's own"));
      }
    });
  });
}

/// Rank 1 throws in the step and catches it; the others run the step.
void part(Training& training, Place place) {
  const at::Tensor x = input(training.world.rank(), 7);
  if (training.world.rank() == 1) {
    EXPECT_THAT(error_of([&] { throw_in_a_step(*training.model, x, place); }),
                HasSubstr("this rank's own"));
  } else {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of([&] { training.model->loss(x).backward(); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("world.recover() on all ranks")));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), kTimeoutSeconds + 2);
  }
}

TEST(EngineRecovery, Fault008_WhatOneRankThrowsHealsWhenAllRanksRecover) {
  on_all_transports(kRanks, kTimeoutSeconds, [](World world) {
    for_all_cases(world, [](Training& training, Place place) {
      part(training, place);
      training.world.recover();
    });
    EXPECT_EQ(world.job().generation(), 16U);
  });
}

TEST(EngineRecovery, Fault008_TheOthersNameTheRankThatWentOn) {
  on_all_transports(kRanks, kTimeoutSeconds, [](World world) {
    expect_no_trace(world, Store::kSlots, 1, [&](Training& training) {
      const at::Tensor x = input(world.rank(), 7);
      if (world.rank() == 1) {
        EXPECT_NE(error_of([&] { throw_in_a_step(*training.model, x, Place::kForward); }),
                  "no error");
      }
      const std::string error = error_of([&] {
        training.model->loss(x).backward();  // on rank 1, the next step
        world.barrier();
      });
      EXPECT_THAT(error, HasSubstr("rank 1"));
      // It stays the error of every call.
      EXPECT_EQ(error_of([&] { training.model->loss(x); }), error);
      EXPECT_EQ(error_of([&] { training.sharded.zero_grad(); }), error);
      EXPECT_EQ(error_of([&] { training.sharded.full_parameters(); }), error);
      world.recover();
    });
  });
}

TEST(EngineRecovery, AScopeWithFullParametersEndsWithItsGeneration) {
  on_all_transports(2, kTimeoutSeconds, [](World world) {
    Training training(world, Store::kSlots);
    training.step(0);
    const auto expected = training.shards();
    const std::int64_t live = training.sharded.report().live[memory::Kind::kFullScope];
    {
      std::optional<FullParameters> full(training.sharded.full_parameters(/*writeback=*/true));
      torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : training.model->parameters()) {
        parameter.fill_(7);
      }
      world.recover();
      EXPECT_EQ(training.sharded.report().unsharded_numel, 0);
      EXPECT_EQ(training.sharded.report().live[memory::Kind::kFullScope], live);
      const auto again = training.sharded.full_parameters();
      full.reset();  // of the earlier generation: writes nothing, ends nothing
      EXPECT_GT(training.sharded.report().unsharded_numel, 0);
      for (const at::Tensor& parameter : training.model->parameters()) {
        EXPECT_FALSE(parameter.eq(7).any().item<bool>());
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(training.shards()[i], expected[i])) << i;
    }
  });
}

TEST(EngineRecovery, ARankThatHadNotFailedDropsItsGradientsToo) {
  on_all_transports(2, kTimeoutSeconds, [](World world) {
    Training training(world, Store::kSlots);
    training.model->loss(input(world.rank(), 0)).backward();
    training.model->layers[0](input(world.rank(), 1));  // gathers ahead are under way
    world.recover();
    EXPECT_EQ(training.sharded.report().unsharded_numel, 0);
    for (const at::Tensor& shard : training.sharded.parameters()) {
      EXPECT_FALSE(shard.grad().defined());
    }
    training.sharded.reset_counters();
    training.step(0);
    EXPECT_EQ(training.sharded.report().counters.prefetch_misses, 0);
  });
}

}  // namespace
}  // namespace fsdp::test
