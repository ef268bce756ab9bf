// SPDX-License-Identifier: Apache-2.0
/// What a parameter has from its first step on, through checkpoints that are older than that step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;

constexpr int kSteps = 3;

struct TwoLayers : torch::nn::Module {
  TwoLayers()
      : a(register_module("a", torch::nn::Linear(4, 4))),
        b(register_module("b", torch::nn::Linear(4, 4))) {
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
      parameter.copy_((steps * 0.7 + ++phase).sin().mul(0.6).view(parameter.sizes()));
    }
  }
  at::Tensor loss(int step) {
    const at::Tensor x = torch::arange(8, torch::kDouble).add(step).sin().view({2, 4});
    return b(torch::tanh(a(x))).square().mean();
  }
  torch::nn::Linear a, b;
};

/// An optimizer of either house.
struct AnyOptimizer {
  std::shared_ptr<void> owner;
  std::function<void()> step;
  std::function<std::unique_ptr<checkpoint::OptimizerState>()> state;
};
using MakeAny = std::function<AnyOptimizer(const Sharded&)>;

template <class Optimizer, class... Options>
MakeAny own(Options... options) {
  return [=](const Sharded& sharded) {
    const auto optimizer = std::make_shared<Optimizer>(sharded, options...);
    return AnyOptimizer{optimizer, [=] { optimizer->step(); },
                        [=] { return checkpoint::state_of(*optimizer); }};
  };
}

template <class Optimizer, class... Options>
MakeAny stock(Options... options) {
  return [=](const Sharded& sharded) {
    const auto optimizer = std::make_shared<Optimizer>(sharded.parameters(), options...);
    return AnyOptimizer{optimizer, [=] { optimizer->step(); },
                        [=] { return checkpoint::state_of(*optimizer, sharded); }};
  };
}

/// Of two layers the second trains from when it is told to.
struct LateRun {
  LateRun(const World& world, const MakeAny& make, bool is_frozen_at_first)
      : model(std::make_shared<TwoLayers>()) {
    if (is_frozen_at_first) {
      train_second(false);
    }
    sharded.emplace(fully_shard(model, world, test_options(units_of<torch::nn::Linear>())));
    optimizer = make(*sharded);
    train_second(false);
  }
  void train_second(bool trains) {
    for (at::Tensor& parameter : model->b->parameters()) {
      parameter.requires_grad_(trains);
    }
  }
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      sharded->zero_grad();
      model->loss(step).backward();
      optimizer.step();
    }
  }
  std::vector<at::Tensor> weights() const {
    const FullParameters full = sharded->full_parameters();
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : model->parameters()) {
      weights.push_back(parameter.detach().clone());
    }
    return weights;
  }
  std::shared_ptr<TwoLayers> model;
  std::optional<Sharded> sharded;
  AnyOptimizer optimizer;
};

void expect_near(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 0, 1e-14)) << "parameter " << i;
  }
}

struct Pair {
  const char* name;
  MakeAny saves, loads;
};

std::vector<Pair> pairs() {
  const auto own_adamw = own<optim::AdamW>(optim::AdamWOptions{.lr = 0.05, .eps = 1e-4});
  const auto own_sgd =
      own<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.5});
  const auto stock_adamw = stock<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05).eps(1e-4));
  const auto stock_sgd =
      stock<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.5));
  return {{"own AdamW", own_adamw, own_adamw},
          {"own SGD", own_sgd, own_sgd},
          {"stock AdamW", stock_adamw, stock_adamw},
          {"stock SGD", stock_sgd, stock_sgd},
          {"own AdamW to stock", own_adamw, stock_adamw},
          {"stock AdamW to own", stock_adamw, own_adamw},
          {"own SGD to stock", own_sgd, stock_sgd},
          {"stock SGD to own", stock_sgd, own_sgd}};
}

TEST(LateState, Fault145_WhatWasNeverSteppedIsNotAfterALoad) {
  for (const Pair& pair : pairs()) {
    for (const bool is_frozen_at_first : {false, true}) {
      SCOPED_TRACE(testing::Message() << pair.name << ", frozen at first " << is_frozen_at_first);
      const TemporaryDirectory directory;
      run_threads(2, [&](World world) {
        LateRun whole(world, pair.saves, is_frozen_at_first);
        whole.train(kSteps);
        checkpoint::Saver saver(directory.path(), *whole.sharded, whole.optimizer.state());
        saver.save(kSteps);
        saver.wait();
        whole.train_second(true);
        whole.train(kSteps);
        const std::vector<at::Tensor> expected = whole.weights();
        LateRun second(world, pair.loads, is_frozen_at_first);
        const auto load = [&] {
          const auto state = second.optimizer.state();
          checkpoint::load(directory.path(), *second.sharded, state.get());
          second.train_second(true);
          second.train(kSteps);
          expect_near(second.weights(), expected);
        };
        load();
        load();  // back to the same step in a run that has trained the second layer meanwhile
      });
    }
  }
}

TEST(LateState, Fault145_ACheckpointWithoutAnOptimizerIsRefusedForOne) {
  const TemporaryDirectory directory;
  const auto adamw = stock<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05));
  run_threads(2, [&](World world) {
    LateRun run(world, adamw, false);
    checkpoint::Saver saver(directory.path(), *run.sharded);
    saver.save(kSteps);
    saver.wait();
    const auto state = run.optimizer.state();
    EXPECT_THAT(
        error_of([&] { checkpoint::load(directory.path(), *run.sharded, state.get()); }),
        testing::AllOf(HasSubstr("saved without an optimizer"), HasSubstr("of kind AdamW")));
    checkpoint::load(directory.path(), *run.sharded, state.get(), {.strict = false});
  });
}

/// Weights of 1 in the file, 5 from then on, whose average begins when they train: at 5.
TEST(LateState, Fault145_AnAverageThatWasNotThereYetBeginsWhenItsParameterTrains) {
  const TemporaryDirectory directory;
  const auto sgd = own<optim::SGD>(optim::SGDOptions{.lr = 0});
  run_threads(2, [&](World world) {
    const auto state_with = [](LateRun& run, optim::Ema& ema) {
      return checkpoint::with_averages(run.optimizer.state(), ema);
    };
    const auto weight_of_b = [](const LateRun& run) {
      return run.sharded->named_parameters()[2].shard;
    };
    LateRun first(world, sgd, /*is_frozen_at_first=*/true);
    optim::Ema none(*first.sharded, 0.5);
    EXPECT_EQ(none.averages().size(), 2u);
    checkpoint::Saver saver(directory.path(), *first.sharded, state_with(first, none));
    saver.save(kSteps);
    saver.wait();
    // One that trains the second layer already, and one that has not begun to.
    for (const bool is_frozen_at_first : {false, true}) {
      LateRun run(world, sgd, is_frozen_at_first);
      run.train_second(!is_frozen_at_first);
      optim::Ema ema(*run.sharded, 0.5);
      const auto state = state_with(run, ema);
      checkpoint::load(directory.path(), *run.sharded, state.get());
      EXPECT_EQ(ema.averages().size(), 2u);
      run.train_second(true);
      run.train(1);
      at::Tensor weight = weight_of_b(run).data();
      weight.fill_(5);
      ema.update();
      ASSERT_EQ(ema.averages().size(), 4u);
      const auto averaged = ema.swap_in();
      EXPECT_TRUE(weight.eq(5).all().item<bool>());
    }
  });
}

/// Gradients are in no file: what waits would be missing in a run that goes on from it.
TEST(LateState, Fault146_NothingIsSavedWhileGradientsWait) {
  const TemporaryDirectory directory;
  const auto sgd = own<optim::SGD>(optim::SGDOptions{.lr = 0.1});
  run_threads(2, [&](World world) {
    LateRun run(world, sgd, false);
    checkpoint::Saver saver(directory.path(), *run.sharded, run.optimizer.state());
    run.sharded->set_gradient_sync(GradientSync::kDeferAll);
    run.model->loss(0).backward();
    EXPECT_THAT(error_of([&] { saver.save(1); }),
                testing::AllOf(HasSubstr("step 1 is to be saved"),
                               HasSubstr("gradients of a deferred"), HasSubstr("zero_grad()")));
    run.sharded->set_gradient_sync(GradientSync::kEveryBackward);
    run.model->loss(1).backward();
    saver.save(1);
    saver.wait();
    run.sharded->set_gradient_sync(GradientSync::kDeferAll);
    run.model->loss(2).backward();
    run.sharded->zero_grad();
    saver.save(2);
    saver.wait();
  });
}

}  // namespace
