// SPDX-License-Identifier: Apache-2.0
/// Loss scaling, and steps that all ranks skip because one of them has a gradient that is not
/// finite.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/sink/non_finite.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Two weights; each element's gradient is the factor that forward gets for it.
struct Pair : nn::Module {
  explicit Pair(std::int64_t numel = 6)
      : first(register_parameter("first", torch::ones({numel}))),
        second(register_parameter("second", torch::ones({numel}))) {}
  at::Tensor forward(double of_first, double of_second) {
    // The loss is float32, as it should be: a gradient of 65536 is no number of float16.
    return (first.to(torch::kFloat) * of_first).sum() +
           (second.to(torch::kFloat) * of_second).sum();
  }
  at::Tensor first, second;
};

Options half_options() {
  Options options = test_options({});
  options.precision.param = at::kHalf;
  return options;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.detach().clone());
  }
  return all;
}

TEST(LossScalerTest, GradientsBelowFloat16ArriveScaled) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded);
    const double tiny = std::ldexp(1.0, -30);  // no number of float16
    scaler.scale(model->forward(1.0, 1.0) * tiny).backward();
    const GradientCheck check = scaler.unscale_();
    EXPECT_FALSE(check.is_skipped);
    EXPECT_NEAR(check.norm, tiny * std::sqrt(12.0), tiny * 1e-6);
    for (const at::Tensor& shard : sharded.parameters()) {
      EXPECT_TRUE(shard.grad().clone().eq(tiny).all().item<bool>());
    }
    scaler.update();
  });
}

TEST(LossScalerTest, UnscalingClipsInTheSamePass) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded, {.init_scale = 1024});
    scaler.scale(model->forward(2.0, 1.0)).backward();
    sharded.reset_counters();
    EXPECT_NEAR(scaler.unscale_(/*max_norm=*/1.0).norm, std::sqrt(30.0), 1e-6);
    EXPECT_NEAR(grad_norm(sharded), 1.0, 1e-6);
  });
}

TEST(LossScalerTest, Fault071_AnOverflowOnOneRankHalvesTheScaleOnAll) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded);
    optim::AdamW own(sharded, {.lr = 0.1});
    torch::optim::AdamW stock(sharded.parameters(), torch::optim::AdamWOptions(0.1));
    const auto before = copies(sharded.parameters());
    EXPECT_EQ(scaler.current_scale(), 65536.0);
    // 2 * 65536 is beyond float16, on rank 2 alone.
    scaler.scale(model->forward(1e-3, world.rank() == 2 ? 2.0 : 1e-3)).backward();
    const GradientCheck check = scaler.unscale_();
    EXPECT_TRUE(check.is_skipped);
    ASSERT_TRUE(check.bad.has_value());
    EXPECT_EQ(check.bad->parameter, "second");
    own.step();
    stock.step();
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), 32768.0);
    EXPECT_EQ(own.steps(), 0);
    EXPECT_TRUE(stock.state().empty());
    const auto after = copies(sharded.parameters());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(after[i], before[i]));
    }
  });
}

TEST(LossScalerTest, Fault072_RanksWithoutShardsTakePart) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Pair>(1);  // two elements over four ranks
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded);
    optim::AdamW optimizer(sharded, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      scaler.scale(model->forward(1e-2, 1e-2)).backward();
      EXPECT_FALSE(scaler.unscale_(1.0).is_skipped);
      optimizer.step();
      scaler.update();
    }
    EXPECT_EQ(optimizer.steps(), 3);
    const auto scope = sharded.full_parameters();
    EXPECT_LT(model->first.item<float>(), 0.8F);
  });
}

TEST(LossScalerTest, TheScaleGrowsAfterQuietStepsAndItsStateComesBack) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded, {.init_scale = 8, .growth_interval = 3});
    const auto step = [&](LossScaler& of, double gradient) {
      sharded.zero_grad();
      of.scale(model->forward(gradient, gradient)).backward();
      of.unscale_();
      of.update();
    };
    for (const double expected : {8.0, 8.0, 16.0, 16.0, 16.0, 32.0}) {
      step(scaler, 1.0);
      EXPECT_EQ(scaler.current_scale(), expected);
    }
    step(scaler, 1.0);
    LossScaler resumed(sharded, {.growth_interval = 3});
    resumed.set_state(scaler.state());
    step(resumed, 1.0);
    step(resumed, 1.0);
    EXPECT_EQ(resumed.current_scale(), 64.0);
    step(resumed, kInf);
    EXPECT_EQ(resumed.current_scale(), 32.0);
    EXPECT_EQ(resumed.state().growth_tracker, 0);
  });
}

TEST(LossScalerTest, MisuseIsRefused) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, half_options());
    LossScaler scaler(sharded);
    EXPECT_NE(error_of([&] { scaler.update(); }).find("without unscale_()"), std::string::npos);
    scaler.scale(model->forward(1e-3, 1e-3)).backward();
    scaler.unscale_();
    EXPECT_NE(error_of([&] { scaler.unscale_(); }).find("called twice"), std::string::npos);
    EXPECT_NE(error_of([&] { LossScaler(sharded, {.init_scale = 0}); }).find("the scale is 0"),
              std::string::npos);
  });
}

TEST(NonFinite, Fault032_TheStepIsSkippedOnAllRanksAndTheParameterIsNamed) {
  for (const bool skips : {true, false}) {
    run_threads(2, [&](World world) {
      auto model = std::make_shared<Pair>();
      Options options = test_options({});
      options.skip_non_finite = skips;
      Sharded sharded = fully_shard(model, world, options);
      optim::AdamW optimizer(sharded, {.lr = 0.1});
      model->forward(1.0, 1.0).backward();
      const auto before = copies(sharded.parameters());
      // "second" lies on rank 1 alone at this alignment.
      const at::Tensor grad = sharded.parameters()[1].grad();
      if (world.rank() == 1) {
        ASSERT_GT(grad.numel(), 0);
        grad.narrow(0, 0, 1).fill_(std::nan(""));
      }
      const auto bad = find_bad_gradient(sharded);
      ASSERT_TRUE(bad.has_value());
      EXPECT_EQ(bad->parameter, "second");
      EXPECT_EQ(bad->rank, 1);
      EXPECT_TRUE(std::isnan(clip_grad_norm_(sharded, 1.0)));
      optimizer.step();
      EXPECT_EQ(optimizer.steps(), skips ? 0 : 1);
      const auto after = copies(sharded.parameters());
      EXPECT_EQ(torch::equal(after[0], before[0]) && torch::equal(after[1], before[1]), skips);
      // The next step is as if nothing had been.
      sharded.zero_grad();
      model->forward(1.0, 1.0).backward();
      EXPECT_FALSE(find_bad_gradient(sharded).has_value());
      EXPECT_EQ(std::isfinite(clip_grad_norm_(sharded, 1.0)), true);
    });
  }
}

TEST(BadGradients, AreSeenWhereverTheyLieAndCopiedAllTheSame) {
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kComplexFloat}) {
    for (const std::int64_t numel : {1, 2048, 300007}) {
      for (const std::int64_t position : {std::int64_t{0}, numel / 2, numel - 1}) {
        for (const double value : {0.5, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
          at::Tensor source = torch::full({numel}, 0.25, dtype);
          source.narrow(0, position, 1).fill_(value);
          const at::Tensor copy = torch::zeros({numel}, dtype);
          EXPECT_EQ(engine::copy_has_non_finite(copy, source), value != 0.5);
          EXPECT_EQ(engine::has_non_finite(copy), value != 0.5);
          EXPECT_EQ(std::memcmp(copy.data_ptr(), source.data_ptr(), source.nbytes()), 0);
        }
      }
    }
  }
  const at::Tensor turned = torch::ones({3, 4}).t();
  EXPECT_FALSE(engine::copy_has_non_finite(torch::zeros({4, 3}), turned));
}

/// "second" is stored on both ranks; its first element on rank 0.
TEST(BadGradients, Fault148_TheRankThatMadeOneIsNamedBesideTheOneThatStoresIt) {
  struct Two : torch::nn::Module {
    Two()
        : first(register_parameter("first", torch::ones({4}))),
          second(register_parameter("second", torch::ones({8}))) {}
    at::Tensor loss(double factor) { return first.sum() + (second * factor).sum(); }
    at::Tensor first, second;
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    for (const int maker : {0, 1}) {
      run_threads(2, [&](World world) {
        const auto model = std::make_shared<Two>();
        Options options = test_options({});
        options.strategy = strategy;
        options.gradient_divisor = GradientDivisor::kSum;
        Sharded sharded = fully_shard(model, world, options);
        const auto expect = [&](int made_by) {
          const auto bad = find_bad_gradient(sharded);
          ASSERT_TRUE(bad.has_value());
          EXPECT_EQ(bad->parameter, "second");
          EXPECT_EQ(bad->rank, 0);
          EXPECT_EQ(bad->made_by, made_by);
        };
        model->loss(world.rank() == maker ? kNan : 1.0).backward();
        expect(maker);
        model->loss(1.0).backward();  // adds what is sound
        expect(maker);
        sharded.zero_grad();
        model->loss(1.0).backward();
        EXPECT_FALSE(find_bad_gradient(sharded).has_value());
        sharded.zero_grad();
        sharded.set_gradient_sync(GradientSync::kDeferAll);
        model->loss(world.rank() == maker ? kNan : 1.0).backward();
        sharded.set_gradient_sync(GradientSync::kEveryBackward);
        model->loss(1.0).backward();
        expect(maker);
        for (const at::Tensor& shard : sharded.parameters()) {
          shard.mutable_grad().reset();  // as an optimizer of LibTorch does
        }
        model->loss(3e38).backward();
        expect(-1);  // the sum of two
        const GradientCheck check = skip_step(sharded, kNan);
        EXPECT_TRUE(check.is_skipped);
      });
    }
  }
}

}  // namespace
