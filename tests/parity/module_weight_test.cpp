// SPDX-License-Identifier: Apache-2.0
/// What a program does to the module's own weights, by its number in docs/reference/faults.md: the
/// shards follow, or an error says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Pair : nn::Module {
  Pair() : a(register_module("a", nn::Linear(3, 4))), b(register_module("b", nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return b(torch::tanh(a(x))); }
  at::Tensor loss() { return forward(torch::ones({2, 3})).square().mean(); }
  nn::Linear a, b;
};

std::shared_ptr<Pair> filled(double start) {
  const auto model = std::make_shared<Pair>();
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.copy_(torch::arange(parameter.numel()).mul(0.25).add(start).view(parameter.sizes()));
  }
  return model;
}

std::string file_of(const std::shared_ptr<Pair>& model) {
  std::ostringstream stream;
  torch::save(model, stream);
  return stream.str();
}

void load(const std::shared_ptr<Pair>& model, const std::string& file) {
  std::istringstream stream(file);
  torch::load(model, stream);
}

Options options_of(Strategy strategy, const World& world) {
  Options options = test_options(units_of<nn::Linear>());
  options.strategy = strategy;
  if (strategy != Strategy::kFullShard && strategy != Strategy::kReplicate) {
    options.mesh = DeviceMesh(world, 2, world.size() / 2);
  }
  return options;
}

void expect_weights(const Sharded& sharded, Pair& model, Pair& expected) {
  const auto whole = sharded.full_parameters();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(model.parameters()[i], expected.parameters()[i], 0, 1e-6)) << i;
  }
}

class ReplacedWeights : public testing::TestWithParam<std::tuple<Strategy, bool>> {};

TEST_P(ReplacedWeights, Fault139_WhatIsLoadedInsideAScopeIsTrained) {
  const Strategy strategy = std::get<0>(GetParam());
  const bool is_low = std::get<1>(GetParam());
  const auto loaded = filled(0.5), trained = filled(0.5);
  const std::string file = file_of(loaded);
  torch::optim::SGD reference(trained->parameters(), 0.1);
  trained->loss().backward();
  reference.step();
  run_threads(4, [&](const World& world) {
    Options options = options_of(strategy, world);
    if (is_low) {
      options.precision.param = at::kBFloat16;
    }
    const auto model = filled(-1);
    Sharded sharded = fully_shard(model, world, options);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    model->loss().backward();  // it has been in use
    sharded.zero_grad();
    {
      const auto whole = sharded.full_parameters(/*writeback=*/true);
      load(model, file);
      EXPECT_TRUE(torch::equal(model->a->weight, loaded->a->weight));
    }
    expect_weights(sharded, *model, *loaded);
    EXPECT_TRUE(sharded.is_sharded(model->a->weight));
    model->loss().backward();
    optimizer.step();
    if (!is_low) {
      expect_weights(sharded, *model, *trained);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, ReplacedWeights,
                         testing::Combine(testing::Values(Strategy::kFullShard,
                                                          Strategy::kReplicate, Strategy::kHybrid,
                                                          Strategy::kHybridOptimizer),
                                          testing::Bool()));

TEST(ReplacedWeight, Fault139_AForwardInsideTheScopeMixesReplacedAndOtherWeights) {
  const auto expected = filled(-1);
  {
    const torch::NoGradGuard no_grad;
    expected->a->weight.fill_(0.25);
  }
  run_threads(2, [&](const World& world) {
    const auto model = filled(-1);
    Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
    {
      const torch::NoGradGuard no_grad;
      const auto whole = sharded.full_parameters(/*writeback=*/true);
      model->a->weight.set_data(torch::full({4, 3}, 0.25));
      EXPECT_TRUE(torch::equal(model->loss(), expected->loss()));
      const auto* raw = model->a->weight.const_data_ptr<float>();  // whole in any case
      EXPECT_EQ(raw[0], 0.25F);
    }
    expect_weights(sharded, *model, *expected);
  });
}

TEST(ReplacedWeight, Fault139_WhatShardsCannotHoldIsRefusedAndChangesNothing) {
  struct Replacement {
    std::function<void(Pair& model)> act;
    std::string found;
  };
  const std::vector<Replacement> replacements = {
      {[](Pair& model) { model.to(torch::kDouble); }, "Double [4, 3] on cpu"},
      {[](Pair& model) { model.to(torch::kBFloat16); }, "BFloat16 [4, 3] on cpu"},
      {[](Pair& model) { model.a->weight.set_data(torch::ones({3, 4})); }, "Float [3, 4] on cpu"}};
  for (const Replacement& replacement : replacements) {
    run_threads(2, [&](const World& world) {
      const auto model = filled(-1);
      Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
      {
        const torch::NoGradGuard no_grad;
        const auto whole = sharded.full_parameters(/*writeback=*/true);
        model->b->bias.add_(1);
        error_of([&] { replacement.act(*model); });  // to() meets it at the next weight
      }
      const auto refused = AllOf(HasSubstr("\"a.weight\""), HasSubstr(replacement.found),
                                 HasSubstr("Float [4, 3] on cpu"));
      EXPECT_THAT(error_of([&] { model->loss(); }), refused);
      const auto unchanged = filled(-1);
      EXPECT_TRUE(torch::allclose(model->loss(), unchanged->loss()));
      expect_weights(sharded, *model, *unchanged);
    });
  }
}

TEST(ReplacedWeight, Fault139_AScopeThatOnlyReadsTakesNoWeights) {
  const auto refused =
      AllOf(HasSubstr("\"a.weight\""), HasSubstr("full_parameters(/*writeback=*/true)"));
  run_threads(2, [&](const World& world) {
    const auto model = filled(-1);
    Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
    {
      const auto whole = sharded.full_parameters();
      EXPECT_THAT(error_of([&] { load(model, file_of(filled(0.5))); }), refused);
      model->a->weight.set_data(torch::ones({4, 3}));
    }
    EXPECT_THAT(error_of([&] { sharded.zero_grad(); }), refused);
    const auto unchanged = filled(-1);
    expect_weights(sharded, *model, *unchanged);
  });
}

TEST(ReplacedWeight, Fault139_OutsideOfAScopeTheErrorHasTheWayInside) {
  run_threads(2, [](const World& world) {
    const auto model = filled(-1);
    const Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
    const auto has_way = HasSubstr("inside full_parameters(/*writeback=*/true)");
    EXPECT_THAT(error_of([&] { load(model, file_of(filled(0.5))); }), has_way);
    model->a->weight.set_data(torch::ones({4, 3}));
    EXPECT_THAT(error_of([&] { model->loss().backward(); }), has_way);
  });
}

TEST(ReplacedWeight, Fault139_ShardsThatChangeInsideAScopeAreRefused) {
  for (const bool writes_back : {false, true}) {
    run_threads(2, [&](const World& world) {
      const auto model = filled(0.5), expected = filled(0.5);
      Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
      torch::optim::SGD torchs(sharded.parameters(), 0.1);
      optim::SGD own(sharded, {.lr = 0.1});
      model->loss().backward();
      {
        const auto whole = sharded.full_parameters(writes_back);
        const auto refused =
            AllOf(HasSubstr("inside a scope"), HasSubstr(writes_back ? "over the change" : "show"));
        EXPECT_THAT(error_of([&] { torchs.step(); }), refused);
        EXPECT_THAT(error_of([&] { own.step(); }), refused);
        EXPECT_THAT(error_of([&] { sharded.mark_written(); }), refused);
      }
      torchs.step();
      torch::optim::SGD reference(expected->parameters(), 0.1);
      expected->loss().backward();
      reference.step();
      expect_weights(sharded, *model, *expected);
    });
  }
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Processor time of 2,000 operators on one weight inside a scope, the least of five.
double scope_seconds(int parameters) {
  double best = 1e9;
  run_threads(1, [&](const World& world) {
    struct Many : nn::Module {
      explicit Many(int count) {
        for (int i = 0; i < count; ++i) {
          register_parameter("p" + std::to_string(i), torch::ones({1}));
        }
      }
    };
    const auto model = std::make_shared<Many>(parameters);
    const Sharded sharded = fully_shard(model, world, test_options({}));
    const torch::NoGradGuard no_grad;
    const auto whole = sharded.full_parameters(/*writeback=*/true);
    const at::Tensor weight = model->parameters()[0];
    for (int trial = 0; trial < 5; ++trial) {
      const double begin = thread_seconds();
      for (int i = 0; i < 2000; ++i) {
        weight.mul_(1.0);
      }
      best = std::min(best, thread_seconds() - begin);
    }
  });
  return best;
}

TEST(ReplacedWeight, Fault139_AnOperatorInsideAScopeCostsTheSameInAModuleOfManyWeights) {
  const double few = scope_seconds(10), many = scope_seconds(10000);
  EXPECT_LT(many, 4 * few);
}

}  // namespace
}  // namespace fsdp::test
