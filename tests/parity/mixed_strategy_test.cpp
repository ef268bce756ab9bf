// SPDX-License-Identifier: Apache-2.0
/// Strategies of single units and parameters, and units of several kinds of parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/name_pattern.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/twins.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;
using testing::HasSubstr;
namespace nn = torch::nn;

/// Blocks as a transformer has them: a norm, a matrix and biases.
struct BlockImpl : nn::Module {
  BlockImpl()
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})))),
        linear(register_module("linear", nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(linear(norm(x))); }
  nn::LayerNorm norm;
  nn::Linear linear;
};
TORCH_MODULE(Block);

struct Tower : nn::Module {
  Tower() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (Block& block : blocks) {
      x = block(x);
    }
    return x;
  }
  std::vector<Block> blocks;
};

Training<Tower> tower(Options options, int ranks) {
  return {
      .ranks = ranks, .options = std::move(options), .loss = [](Tower& model, int step, int rank) {
        return model.forward(batch(6, step, rank)).square().mean();
      }};
}

TEST(Mixed, SmallParametersAreReplicatedAndCostNoGather) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGrad}) {
    Options options = test_options(units_of<Block>());
    options.strategy = strategy;
    options.replicate_below = 10;
    expect_twins(tower(options, 3));
  }
  run_threads(3, [](World world) {
    auto model = std::make_shared<Tower>();
    Options options = test_options(units_of<Block>());
    options.replicate_below = 10;
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(sharded.report().units.size(), 4u);
    // One slice of 36/3 elements a block, and all of 9 vectors of 6.
    EXPECT_EQ(sharded.report().live[Kind::kShards], 4 * (3 * 12 + 9 * 6));
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      sharded.reset_counters();
      model->forward(torch::ones({2, 6})).sum().backward();
      const Counters counters = sharded.report().counters;
      // Forward, and backward but for the block that is there at the turn, and the one before it
      // once it is known to come next.
      const std::int64_t gathers = step == 0 ? 3 + 2 : 3 + 1;
      EXPECT_EQ(counters.gathers, gathers) << step;
      EXPECT_EQ(counters.gather_bytes, 4 * 36 * gathers);
      EXPECT_EQ(counters.reduce_bytes, 4 * 36 * 3);
      EXPECT_EQ(counters.replica_reductions, 1);
      EXPECT_EQ(counters.replica_bytes, 2 * 4 * 54);
    }
  });
}

TEST(Mixed, ChosenUnitsStayGatheredFromForwardToTheEndOfBackward) {
  Options options = test_options(units_of<Block>());
  options.rules.push_back({.units = units_listed({"block1", "block2"}), .keep_gathered = true});
  expect_twins(tower(options, 2));
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Tower>();
    Sharded sharded = fully_shard(model, world, options);
    const std::int64_t block = 4 * 2 * (36 + 3 * 6) / 2;
    EXPECT_EQ(sharded.report().live[Kind::kGatherSlots], (2 + 2) * block);
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      sharded.reset_counters();
      model->forward(torch::ones({2, 6})).sum().backward();
      EXPECT_EQ(sharded.report().counters.gathers, 3 + 1);
    }
    const torch::NoGradGuard no_grad;
    model->forward(torch::ones({2, 6}));
    model->forward(torch::ones({2, 6}));
    EXPECT_EQ(sharded.report().unsharded_numel, 0) << "an evaluation keeps nothing";
  });
  run_threads(1, [&](World world) {
    Options wrong = test_options(units_of<Block>());
    wrong.rules.push_back({.units = units_listed({"block7"}), .keep_gathered = true});
    EXPECT_THAT(error_of([&] { fully_shard(std::make_shared<Tower>(), world, wrong); }),
                HasSubstr("Options::rules[0] lists \"block7\""));
  });
}

TEST(Mixed, IgnoredParametersAreLeftToTheProgram) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Tower>();
    {
      torch::NoGradGuard no_grad;
      model->blocks[1]->norm->weight.fill_(2 + world.rank());
    }
    Options options = test_options(units_of<Block>());
    options.ignore = {"*.norm.*"};
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(sharded.parameters().size(), 6u);
    const at::Tensor& ignored = model->blocks[1]->norm->weight;
    EXPECT_FALSE(sharded.is_sharded(ignored));
    EXPECT_TRUE(ignored.eq(2 + world.rank()).all().item<bool>()) << "not broadcast";
    model->forward(torch::ones({2, 6}) * (1 + world.rank())).sum().backward();
    EXPECT_TRUE(ignored.grad().defined()) << "its gradient is the program's";
    EXPECT_EQ(ignored.grad().sizes(), ignored.sizes());

    options.ignore = {"*.norm.weigth"};
    EXPECT_THAT(error_of([&] { fully_shard(std::make_shared<Tower>(), world, options); }),
                HasSubstr("*.norm.weigth"));
  });
}

TEST(Mixed, PatternsMatchWholeNames) {
  using base::matches;
  EXPECT_TRUE(matches("*.norm.*", "block1.norm.weight"));
  EXPECT_TRUE(matches("a*b*c", "aXbbYc"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("w", "w"));
  EXPECT_TRUE(matches("a*", "a"));
  EXPECT_FALSE(matches("norm", "block1.norm.weight"));
  EXPECT_FALSE(matches("a*b", "aXbc"));
  EXPECT_FALSE(matches("", "a"));
}

/// Whole weights after three steps with bfloat16 weights and float32 shards.
at::Tensor trained_in_bfloat16(const World& world, Options options) {
  static std::mutex mutex;
  std::shared_ptr<Tower> model;
  {
    const std::lock_guard lock(mutex);
    torch::manual_seed(3);
    model = std::make_shared<Tower>();
  }
  options.precision.param = at::kBFloat16;
  Sharded sharded = fully_shard(model, world, std::move(options));
  optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    sharded.reset_counters();
    const at::Tensor x = batch(6, step, world.rank()).to(torch::kFloat);
    model->forward(x).to(torch::kFloat).square().mean().backward();
    EXPECT_EQ(sharded.report().counters.casts, 3) << "each unit once a step";
    optimizer.step();
    EXPECT_EQ(sharded.report().live, sharded.report().promise);
  }
  const auto full = sharded.full_parameters();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
    flat.push_back(parameter.detach().reshape({-1}));
  }
  return torch::cat(flat).clone();
}

TEST(Mixed, EveryStrategyTrainsInLowPrecisionAsFullSharding) {
  run_threads(4, [](World world) {
    const at::Tensor expected = trained_in_bfloat16(world, test_options(units_of<Block>()));
    const DeviceMesh mesh(world, 2, 2);
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      for (const Strategy strategy : {Strategy::kShardGrad, Strategy::kReplicate, Strategy::kHybrid,
                                      Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
        SCOPED_TRACE(to_string(strategy));
        Options options = test_options(units_of<Block>());
        options.memory.store = store;
        options.strategy = strategy;
        if (strategy != Strategy::kShardGrad && strategy != Strategy::kReplicate) {
          options.mesh = mesh;
        }
        // Sums over ranks round in another order.
        EXPECT_TRUE(torch::allclose(trained_in_bfloat16(world, options), expected, 0, 1e-3));
      }
    }
  });
}

/// One unit of three dtypes, all of which its operators take in turn.
struct ThreeTypes : nn::Module {
  ThreeTypes()
      : a(register_parameter("a", torch::ones({5}))),
        b(register_parameter("b", torch::ones({5}, torch::kDouble))),
        c(register_parameter("c", torch::ones({5}, torch::kLong), /*requires_grad=*/false)) {}
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < 3; ++i) {
      x = x * a + x * b + c;
    }
    return x;
  }
  at::Tensor a, b, c;
};

TEST(Mixed, Fault066_TypesOfOneUnitAreGatheredTogether) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<ThreeTypes>();
    Sharded sharded = fully_shard(model, world, test_options({}, 0, /*prefetch=*/0));
    EXPECT_EQ(sharded.report().units.size(), 3u);
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      sharded.reset_counters();
      model->forward(torch::ones({5})).sum().backward();
      EXPECT_EQ(sharded.report().counters.gathers, 3)
          << "each once, whatever the order of the operators";
      EXPECT_EQ(sharded.report().counters.reduce_scatters, 2);
      EXPECT_EQ(sharded.report().counters.prefetch_misses, 0);
    }
  });
}

}  // namespace
