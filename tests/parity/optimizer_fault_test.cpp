// SPDX-License-Identifier: Apache-2.0
/// Groups, counters, memory and Muon's owners, by their faults' numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>

#include "fsdp/fsdp.hpp"
#include "parity/optimizer_support.hpp"
#include "support/counting_allocator.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::ElementsAre;
using testing::HasSubstr;
namespace nn = torch::nn;

constexpr int kSteps = 5;

/// Weights of ROWS, whose gradient is a constant.
struct Weights : nn::Module {
  explicit Weights(const std::vector<std::int64_t>& rows, double value = 1) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i),
                                           torch::full({rows[i], 1}, value, torch::kDouble)));
    }
  }
  at::Tensor loss(double factor = 1) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& weight : weights) {
      sum = sum + weight.sum() * factor;
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

TEST(OptimizerTest, Fault083_GroupsGoByNameAndWhatIsInNoneStaysAndIsNamed) {
  const auto kind = nested_units();
  Snapshot expected;
  at::Tensor left_out;
  {
    const Subject subject = make_subject(kind);
    std::vector<at::Tensor> weights, biases;
    for (const auto& [name, tensor] : named_parameters(subject)) {
      if (name == "scale") {
        left_out = tensor.detach().clone();
      } else {
        (optim::matches("*.bias", name) ? biases : weights).push_back(tensor);
      }
    }
    using torch::optim::AdamWOptions;
    torch::optim::AdamW of_weights(weights, AdamWOptions(0.1).eps(1e-4).weight_decay(0.1));
    torch::optim::AdamW of_biases(biases, AdamWOptions(0.01).eps(1e-4).weight_decay(0));
    for (int step = 0; step < kSteps; ++step) {
      subject.module->zero_grad();
      subject.loss_of(0, 1).backward();
      of_weights.step();
      of_biases.step();
    }
    for (const auto& [name, tensor] : named_parameters(subject)) {
      expected.parameters.push_back(tensor.detach().clone());
    }
  }
  run_threads(2, [&](World world) {
    const Subject subject = make_subject(kind);
    const Sharded sharded = subject.shard(world, test_options(subject.units));
    optim::AdamW optimizer(
        sharded,
        {{.parameters = {"*.weight"}, .options = {.lr = 0.1, .eps = 1e-4, .weight_decay = 0.1}},
         {.parameters = {"*.bias"}, .options = {.lr = 0.01, .eps = 1e-4, .weight_decay = 0}}});
    EXPECT_THAT(optimizer.untrained(), ElementsAre("scale"));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
    }
    const FullParameters full = sharded.full_parameters();
    Snapshot actual;
    for (const auto& [name, tensor] : named_parameters(subject)) {
      actual.parameters.push_back(tensor.detach().clone());
      EXPECT_TRUE(name != "scale" || torch::equal(tensor, left_out));
    }
    expect_parity(actual, expected);
    EXPECT_THAT(error_of([&] { optim::SGD(sharded, {{.parameters = {"*.wieght"}}}); }),
                HasSubstr("*.wieght"));
  });
}

TEST(OptimizerTest, PatternsFitWholeNames) {
  EXPECT_TRUE(optim::matches("*", "a.b"));
  EXPECT_TRUE(optim::matches("a.*.w", "a.b.c.w"));
  EXPECT_TRUE(optim::matches("*bias", "bias"));
  EXPECT_TRUE(optim::matches("a*b*c", "a.b.b.c"));
  EXPECT_FALSE(optim::matches("a", "a.b"));
  EXPECT_FALSE(optim::matches("*.bias", "bias"));
  EXPECT_FALSE(optim::matches("a*b", "a.b.c"));
  EXPECT_FALSE(optim::matches("", "a"));
}

TEST(OptimizerTest, Fault084_MakingStateChangesNothing) {
  run_threads(2, [](World world) {
    for (const double decay : {0.0, 0.1}) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3, 2}, /*value=*/1);
      const Sharded sharded = fully_shard(model, world, test_options({}));
      optim::AdamW optimizer(sharded, {.lr = 1, .weight_decay = decay});
      optimizer.allocate({"w0", "w1"});
      optimizer.set_steps({{"w0", 0}, {"w1", 0}});
      model->loss().backward();
      optimizer.step();
      for (const at::Tensor& shard : sharded.parameters()) {
        EXPECT_TRUE(
            torch::allclose(shard.detach(), torch::full_like(shard, 1 - decay - 1), 0, 1e-7));
      }
    }
  });
}

TEST(OptimizerTest, Fault040_AFrozenParameterIsLeftAloneAndItsStepsAreNotCounted) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 3});
    model->weights[1].set_requires_grad(false);
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::AdamW optimizer(sharded, {.lr = 0.1, .weight_decay = 0});
    const memory::Bytes before = sharded.report().live;
    const at::Tensor initial = sharded.parameters()[1].detach().clone();
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        model->loss().backward();
        optimizer.step();
      }
    };
    train(2);
    EXPECT_TRUE(torch::equal(sharded.parameters()[1].detach(), initial));
    EXPECT_TRUE(optimizer.parameters()[1].states.empty());
    EXPECT_EQ(sharded.report().live[memory::Kind::kMoments], before[memory::Kind::kMoments]);
    model->weights[1].set_requires_grad(true);
    train(2);
    EXPECT_EQ(optimizer.parameters()[0].steps, 4);
    EXPECT_EQ(optimizer.parameters()[1].steps, 2);
    EXPECT_EQ(optimizer.parameters()[1].states.size(), 2u);
    model->weights[1].set_requires_grad(false);
    const at::Tensor kept = sharded.parameters()[1].detach().clone();
    train(1);
    EXPECT_TRUE(torch::equal(sharded.parameters()[1].detach(), kept));
    EXPECT_EQ(optimizer.parameters()[1].steps, 2);
    EXPECT_EQ(sharded.report().peak[memory::Kind::kMoments],
              sharded.report().promise[memory::Kind::kMoments]);
  });
}

TEST(OptimizerTest, LionsAverageIsTheOneOfItsDefinition) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::Lion optimizer(sharded, {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99});
    // Steps take the sign of an average alone, which hides its size.
    for (const double expected : {0.01, 0.0199}) {
      optimizer.zero_grad();
      model->loss().backward();
      optimizer.step();
      const at::Tensor average = optimizer.parameters()[0].states[0];
      EXPECT_TRUE(torch::allclose(average, torch::full_like(average, expected), 0, 1e-12));
    }
  });
}

TEST(OptimizerTest, Fault040_NeighboursOfOneUnitHaveCountersOfTheirOwn) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3, 4});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::AdamW optimizer(sharded, {.lr = 0.1, .weight_decay = 0});
    for (int step = 0; step < 4; ++step) {
      model->weights[1].set_requires_grad(step >= 2);
      optimizer.zero_grad();
      model->loss().backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.parameters()[0].steps, 4);
    EXPECT_EQ(optimizer.parameters()[1].steps, 2);
    // Of a constant gradient each step is the rate, if the own counter corrects it.
    const FullParameters full = sharded.full_parameters();
    const at::Tensor &first = model->weights[0], &second = model->weights[1];
    EXPECT_TRUE(torch::allclose(first, torch::full_like(first, 0.6), 0, 1e-6)) << first;
    EXPECT_TRUE(torch::allclose(second, torch::full_like(second, 0.8), 0, 1e-6)) << second;
  });
}

TEST(OptimizerTest, Fault089_AnEmptyShardFollowsItsGroup) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(4, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{1, 9});
      Options options = test_options({});
      options.memory.store = store;
      const Sharded sharded = fully_shard(model, world, options);
      // Only rank 0 holds w0's element.
      optim::SGD first(sharded, {{.parameters = {"w0"}, .options = {.lr = 0.5, .momentum = 0.9}}});
      for (int step = 0; step < 3; ++step) {
        first.zero_grad();
        model->loss().backward();
        {
          const torch::NoGradGuard no_grad;
          model->loss();  // an evaluation, so that the first write has to wait for all ranks
        }
        first.step();
      }
      EXPECT_EQ(first.steps(), 3);
      EXPECT_EQ(sharded.parameters()[0].numel(), world.rank() == 0 ? 1 : 0);
      const FullParameters full = sharded.full_parameters();
      EXPECT_NEAR(model->weights[0].item<double>(), 1 - 0.5 * (1 + 1.9 + 2.71), 1e-12);
      EXPECT_TRUE(torch::equal(model->weights[1], torch::ones({9, 1}, torch::kDouble)));
    });
  }
}

TEST(OptimizerTest, Fault088_AStepTakesNoMemoryBesideWhatWasPromised) {
  install_counting_allocator();
  run_threads(1, [](World world) {
    constexpr std::int64_t kMegabyte = 1 << 20;
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>(20, kMegabyte / 8));
    const Sharded sharded = fully_shard(model, world, test_options({}));
    const std::vector<std::pair<OwnFactory, std::int64_t>> rules = {
        {own<optim::SGD>(optim::SGDOptions{}), 0},
        {own<optim::SGD>(optim::SGDOptions{.momentum = 0.9, .nesterov = true}), 20},
        {own<optim::Lion>(optim::LionOptions{}), 20},
        {own<optim::AdamW>(optim::AdamWOptions{}), 40},
    };
    std::int64_t most = 0;
    for (const auto& [make, moments] : rules) {
      const std::int64_t before = allocator_counts().live_bytes;
      const auto optimizer = make(sharded);
      most = std::max(most, moments);
      EXPECT_EQ(allocator_counts().live_bytes - before, moments * kMegabyte);
      EXPECT_EQ(sharded.report().live[memory::Kind::kMoments], moments * kMegabyte);
      EXPECT_EQ(sharded.report().promise[memory::Kind::kMoments], most * kMegabyte);
      optimizer->zero_grad();
      model->loss().backward();
      const std::int64_t live = allocator_counts().live_bytes;
      reset_allocator_counts();
      optimizer->step();
      EXPECT_LE(allocator_counts().peak_bytes - live, 64);  // step counters
    }
  });
}

TEST(OptimizerTest, SgdRefusesAMomentumThatHasNoBuffer) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::SGD optimizer(sharded, {.lr = 0.1});
    optimizer.options().momentum = 0.9;
    model->loss().backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("momentum"));
    EXPECT_THAT(error_of([&] { optim::SGD(sharded, {.nesterov = true}); }), HasSubstr("nesterov"));
    EXPECT_THAT(error_of([&] { optim::Lion(sharded, {.beta1 = 1}); }), HasSubstr("[Lion]"));
    EXPECT_THAT(error_of([&] { optim::Muon(sharded, {.momentum = 1}); }), HasSubstr("[Muon]"));
  });
}

TEST(MuonTest, SingularValuesComeNearOne) {
  torch::manual_seed(1);
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{8, 8}, {5, 20}, {20, 5}, {1, 7}}) {
    at::Tensor matrix = torch::randn(sizes, torch::kDouble);
    const at::Tensor workspace = torch::empty({optim::newton_schulz_numel(sizes)}, torch::kDouble);
    optim::newton_schulz_(matrix, 8, workspace);
    const at::Tensor values = torch::linalg_svdvals(matrix);
    EXPECT_GT(values.min().item<double>(), 0.6) << values;
    EXPECT_LT(values.max().item<double>(), 1.3) << values;
  }
}

TEST(MuonTest, EachMatrixHasOneOwnerTheCostsAreAlikeAndTheBytesAreThoseOfTheFormula) {
  run_threads(2, [](World world) {
    const Subject subject = make_subject(tiny_gpt(true));
    const Sharded sharded = subject.shard(world, test_options(subject.units));
    optim::Muon optimizer(sharded, {}, {"w*"});
    // Two blocks of 6 x 18, 6 x 6, 6 x 24 and 24 x 6 matrices.
    ASSERT_EQ(optimizer.matrices().size(), 8u);
    std::vector<double> cost(2, 0);
    std::int64_t numel = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::vector<std::int64_t> large = {18, 6, 24, 24};
      const auto side = static_cast<double>(large[i % 4]);
      cost[static_cast<std::size_t>(optimizer.whole_matrices().owner(i))] += 36 * (2 * side + 6);
      numel += 6 * large[i % 4];
    }
    EXPECT_EQ(cost[0], cost[1]);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
    }
    const optim::WholeTensorsTraffic traffic = optimizer.whole_matrices().traffic();
    EXPECT_EQ(traffic.gathers, 3);
    EXPECT_EQ(traffic.reduce_scatters, 3);
    EXPECT_EQ(traffic.gather_bytes, 3 * 8 * numel);
    EXPECT_EQ(traffic.reduce_bytes, 3 * 8 * numel);
  });
}

TEST(MuonTest, InHalfTheBytesItStaysNear) {
  run_threads(2, [](World world) {
    std::vector<at::Tensor> shards[2];
    for (const bool low : {false, true}) {
      const Subject subject = make_subject(odd_mlp(), torch::kFloat);
      const Sharded sharded = subject.shard(world, test_options(subject.units));
      optim::Muon optimizer(sharded,
                            {.lr = 0.02, .dtype = low ? at::kBFloat16 : at::ScalarType::Undefined});
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.whole_matrices().traffic().gather_bytes, (low ? 2 : 4) * (35 + 21));
      for (const at::Tensor& shard : sharded.parameters()) {
        shards[low ? 1 : 0].push_back(shard.detach().clone());
      }
    }
    for (std::size_t i = 0; i < shards[0].size(); ++i) {
      EXPECT_TRUE(torch::allclose(shards[0][i], shards[1][i], 0, 0.02 * 0.1)) << i;
    }
  });
}

}  // namespace
