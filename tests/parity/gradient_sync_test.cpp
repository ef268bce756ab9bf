// SPDX-License-Identifier: Apache-2.0
/// What gradients are divided by, and backwards that leave their gradients for a later one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/strategy_name.hpp"
#include "support/subjects.hpp"
#include "support/weights.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;
using testing::HasSubstr;
namespace nn = torch::nn;

void expect_gradient(const Sharded& sharded, double expected) {
  for (const at::Tensor& gradient : whole_gradients(sharded)) {
    EXPECT_TRUE(torch::allclose(gradient, torch::full_like(gradient, expected), 0, 1e-12))
        << gradient << " is not " << expected;
  }
}

TEST(Divisor, Fault013_SumMeanAndWeightedByCount) {
  const std::vector<std::vector<double>> data = {{1}, {5, 5, 5}};
  const auto gradient = [&](GradientDivisor initial, double divisor, bool is_sum) {
    double result = 0;
    run_threads(2, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{1});
      Options options = test_options({});
      options.gradient_divisor = initial;
      Sharded sharded = fully_shard(model, world, options);
      if (divisor > 0) {
        sharded.set_gradient_divisor(divisor);
      }
      const at::Tensor x =
          torch::tensor(data[static_cast<std::size_t>(world.rank())], torch::kDouble);
      (model->weights[0] * (is_sum ? x.sum() : x.mean())).sum().backward();
      const double value = whole_gradients(sharded)[0].item<double>();
      if (world.rank() == 0) {
        result = value;
      }
    });
    return result;
  };
  EXPECT_DOUBLE_EQ(gradient(GradientDivisor::kMean, 0, false), 3.0);
  EXPECT_DOUBLE_EQ(gradient(GradientDivisor::kSum, 4, true), 4.0) << "weighted by count";
  EXPECT_DOUBLE_EQ(gradient(GradientDivisor::kSum, 0, true), 16.0);
}

TEST(Divisor, Fault013_IsPrintedWithThePromise) {
  testing::internal::CaptureStderr();
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    Options options = test_options({});
    options.debug.print_promise = true;
    options.strategy = Strategy::kShardGrad;
    Sharded sharded = fully_shard(model, world, options);
    sharded.set_gradient_divisor(12.5);
    model->sum().backward();
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("over 2 ranks, shard-grad; gradients are summed over ranks and divided by "
                        "12.5"));
}

TEST(Divisor, Fault015_HowAStepIsSplitDoesNotMatter) {
  // Ten samples a rank in all cases; the divisor is the number of samples of the whole step.
  for (const std::vector<int>& split :
       {std::vector<int>{4, 4, 2}, std::vector<int>{5, 5}, std::vector<int>{10}}) {
    run_threads(2, [&](World world) {
      const at::Tensor x = torch::arange(10, torch::kDouble).add(10.0 * world.rank()).view({10, 1});
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
      Sharded sharded = fully_shard(model, world, test_options({}));
      sharded.set_gradient_divisor(20);
      int begin = 0;
      for (int rows : split) {
        (model->weights[0] * x.narrow(0, begin, rows)).sum().backward();
        begin += rows;
      }
      expect_gradient(sharded, 9.5);
    });
  }
}

TEST(Divisor, MustBeTheSameOnAllRanksAndPositive) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_THROW(sharded.set_gradient_divisor(0), Error);
    EXPECT_THROW(sharded.set_gradient_divisor(std::nan("")), Error);
    sharded.set_gradient_divisor(2 + world.rank());
    const std::string error = error_of([&] { model->sum().backward(); });
    EXPECT_THAT(error, HasSubstr("2 on rank 0"));
    EXPECT_THAT(error, HasSubstr("3 on rank 1"));
    EXPECT_THAT(error, HasSubstr("set_gradient_divisor()"));
  });
}

class Deferring : public testing::TestWithParam<Strategy> {
 protected:
  Options options() const {
    Options options = test_options({});
    options.strategy = GetParam();
    return options;
  }
};

TEST_P(Deferring, Fault017_AnyMixtureOfDeferredAndReducedBackwardsIsTheSum) {
  using enum GradientSync;
  for (const GradientSync deferring : {kDeferAll, kDeferReplicate}) {
    for (const std::vector<GradientSync>& pattern :
         {std::vector{deferring, kEveryBackward, deferring, kEveryBackward},
          std::vector{kEveryBackward, deferring, deferring, kEveryBackward},
          std::vector{deferring, kDeferReplicate, kDeferAll, kEveryBackward},
          std::vector{kEveryBackward, kEveryBackward, kEveryBackward, kEveryBackward}}) {
      run_threads(2, [&](World world) {
        auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
        Sharded sharded = fully_shard(model, world, options());
        for (int step = 0; step < 2; ++step) {
          for (int i = 0; i < 4; ++i) {
            sharded.set_gradient_sync(pattern[static_cast<std::size_t>(i)]);
            (model->sum() * (1 << i)).backward();
          }
          expect_gradient(sharded, 15);
          sharded.zero_grad();
        }
      });
    }
  }
}

TEST_P(Deferring, WhatIsDeferredWaitsForAGradientAndIsNotLostWhereTheLastBackwardHasNone) {
  run_threads(3, [&](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
    Sharded sharded = fully_shard(model, world, options());
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    if (world.rank() == 1) {
      (model->weights[1].sum() * 6).backward();
    } else {
      (model->weights[0].sum() * 0).backward();
    }
    EXPECT_FALSE(sharded.parameters()[1].grad().defined());
    sharded.set_gradient_sync(GradientSync::kEveryBackward);
    model->weights[0].sum().backward();
    const auto gradients = whole_gradients(sharded);
    EXPECT_TRUE(torch::equal(gradients[0], torch::ones({5}, torch::kDouble)));
    EXPECT_TRUE(torch::equal(gradients[1], torch::full({2}, 2.0, torch::kDouble)));
    EXPECT_TRUE(sharded.parameters()[1].grad().defined()) << "rank 1 had one";
  });
}

TEST_P(Deferring, AStepBeforeTheLastReductionIsRefused) {
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
    Sharded sharded = fully_shard(model, world, options());
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    sharded.set_gradient_sync(GradientSync::kEveryBackward);
    model->sum().backward();
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    model->sum().backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("gradients wait to be reduced"));
    sharded.zero_grad();
    sharded.set_gradient_sync(GradientSync::kEveryBackward);
    model->sum().backward();
    expect_gradient(sharded, 1);
    optimizer.step();
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, Deferring,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGrad,
                                         Strategy::kReplicate),
                         [](const auto& tested) { return name_of(tested.param); });

/// 66 elements in two units of 42 and 24.
struct Mlp : nn::Module {
  Mlp() : a(register_module("a", nn::Linear(5, 7))), b(register_module("b", nn::Linear(7, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return b(torch::relu(a(x))); }
  nn::Linear a, b;
};

TEST(Deferred, Fault018_WholeGradientsAreHeldOnlyWhileTheyAreDeferred) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Mlp>();
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    const at::Tensor x = torch::ones({2, 5});
    const auto gradient_bytes = [&] {
      const memory::Bytes live = sharded.report().live;
      return live[Kind::kDeferred] + live[Kind::kGradShards];
    };
    model->forward(x).sum().backward();
    const std::int64_t shards = 4 * (11 + 6);  // slices of 42 and 24 over 4 ranks
    EXPECT_EQ(gradient_bytes(), shards);
    EXPECT_EQ(sharded.report().live[Kind::kReduceBuffers], 2 * 4 * 4 * 11)
        << "two buffers of the largest unit, padded";
    const memory::Bytes before = sharded.report().promise;
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    model->forward(x).sum().backward();
    EXPECT_EQ(gradient_bytes(), shards + 4 * 4 * (11 + 6)) << "all 66 elements, padded to 68";
    EXPECT_EQ(sharded.report().promise.total() - before.total(), 4 * 4 * (11 + 6));
    EXPECT_EQ(sharded.report().promise[Kind::kDeferred], sharded.report().live[Kind::kDeferred]);
    EXPECT_EQ(sharded.report().counters.reduce_scatters, 2) << "of the first backward";
  });
}

TEST(Deferred, ABackwardThatDefersSendsNothing) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Mlp>();
    Options options = test_options(units_of<nn::Linear>());
    options.strategy = Strategy::kReplicate;
    Sharded sharded = fully_shard(model, world, options);
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    const at::Tensor x = torch::ones({2, 5});
    if (world.rank() == 0) {
      model->forward(x).sum().backward();  // the other rank does not even take part
    }
    EXPECT_EQ(sharded.report().counters.replica_reductions, 0);
    sharded.set_gradient_sync(GradientSync::kEveryBackward);
    model->forward(x).sum().backward();
    EXPECT_EQ(sharded.report().counters.replica_reductions, 2);
  });
}

}  // namespace
