// SPDX-License-Identifier: Apache-2.0
/// Sharded::on_reduced: hooks on this rank's part of each reduced gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/slow_copier.hpp"
#include "support/subjects.hpp"
#include "support/weights.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace nn = torch::nn;

struct Wide : nn::Module {
  Wide()
      : weight(
            register_parameter("weight", torch::arange(35, torch::kDouble).view({5, 7}).clone())),
        bias(register_parameter("bias", torch::ones({5}, torch::kDouble))) {}
  at::Tensor loss(int rank) {
    const at::Tensor x = torch::arange(14, torch::kDouble).add(rank).sin().view({2, 7});
    return (x.matmul(weight.t()) + bias).square().mean();
  }
  at::Tensor weight, bias;
};

std::vector<at::Tensor> reference(int ranks) {
  Wide model;
  for (int rank = 0; rank < ranks; ++rank) {
    (model.loss(rank) / ranks).backward();
  }
  return {model.weight.grad(), model.bias.grad()};
}

TEST(ReducedHook, Fault053_SeesAndChangesThisRanksPartOfTheReducedGradient) {
  constexpr int kRanks = 3;
  const std::vector<at::Tensor> alone = reference(kRanks);
  for (const bool offloads : {false, true}) {
    run_threads(kRanks, [&](World world) {
      auto model = std::make_shared<Wide>();
      Options options = test_options({});
      if (offloads) {
        options.memory.offload.emplace();
        options.memory.offload->copier =
            std::make_shared<SlowCopier>(std::chrono::milliseconds(20));
      }
      Sharded sharded = fully_shard(model, world, options);
      std::vector<std::string> seen;
      const auto caller = std::this_thread::get_id();
      sharded.on_reduced([&](const NamedShard& parameter, at::Tensor grad) {
        seen.push_back(parameter.name);
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_TRUE(grad.is_same(parameter.shard.grad()));
        const std::size_t index = parameter.name == "weight" ? 0 : 1;
        EXPECT_EQ(parameter.sizes, alone[index].sizes().vec());
        const at::Tensor part =
            alone[index].flatten().narrow(0, parameter.begin, parameter.shard.numel());
        EXPECT_TRUE(torch::allclose(grad.clone(), part, 0, 1e-12)) << "reduced, and this rank's";
        grad.mul_(2);
      });
      model->loss(world.rank()).backward();
      EXPECT_THAT(seen, ElementsAre("weight", "bias")) << "also where this rank's part is empty";
      const std::vector<at::Tensor> whole = whole_gradients(sharded);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(torch::allclose(whole[i], 2 * alone[i].view_as(whole[i]), 0, 1e-12)) << i;
      }
    });
  }
}

TEST(ReducedHook, Fault053_IsCalledOnceForEachGradientThatABackwardReduced) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{4, 5, 6});
    Sharded sharded = fully_shard(model, world, test_options({}));
    std::vector<std::string> seen;
    const auto id = sharded.on_reduced(
        [&](const NamedShard& parameter, const at::Tensor&) { seen.push_back(parameter.name); });
    const auto calls = [&] { return std::exchange(seen, {}); };
    // w1 on one rank only, w2 on none.
    at::Tensor loss = model->weights[0].sum();
    if (world.rank() == 1) {
      loss = loss + model->weights[1].sum();
    }
    loss.backward();
    EXPECT_THAT(calls(), ElementsAre("w0", "w1"));
    model->weights[2].sum().backward();
    EXPECT_THAT(calls(), ElementsAre("w2")) << "the others have gradients, of an earlier backward";
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    model->weights[0].sum().backward();
    EXPECT_THAT(calls(), IsEmpty()) << "nothing was reduced";
    sharded.set_gradient_sync(GradientSync::kEveryBackward);
    model->weights[1].sum().backward();
    EXPECT_THAT(calls(), ElementsAre("w0", "w1")) << "with what was deferred to it";
    sharded.remove_on_reduced(id);
    model->sum().backward();
    EXPECT_THAT(calls(), IsEmpty());
    EXPECT_THAT(error_of([&] { sharded.remove_on_reduced(id); }), HasSubstr("no hook is 1"));
  });
}

TEST(ReducedHook, RunsInTheOrderOfRegistrationAndMayRemoveItself) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    Sharded sharded = fully_shard(model, world, test_options({}));
    std::uint64_t first = 0;
    first = sharded.on_reduced([&](const NamedShard&, const at::Tensor& grad) {
      grad.add_(1);
      sharded.remove_on_reduced(first);
    });
    sharded.on_reduced([&](const NamedShard&, const at::Tensor& grad) { grad.mul_(3); });
    model->sum().backward();
    EXPECT_DOUBLE_EQ(whole_gradients(sharded)[0][0].item<double>(), 6);
    sharded.zero_grad();
    model->sum().backward();
    EXPECT_DOUBLE_EQ(whole_gradients(sharded)[0][0].item<double>(), 3);
  });
}

TEST(ReducedHook, Fault053_WhatItThrowsIsToldOnAllRanksAndTheyRecover) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{9});
    Sharded sharded = fully_shard(model, world, test_options({}));
    const auto id = sharded.on_reduced([&](const NamedShard& parameter, const at::Tensor&) {
      if (world.rank() == 1) {
        throw std::runtime_error("no use for " + parameter.name);
      }
    });
    const std::string at_once = error_of([&] { model->sum().backward(); });
    if (world.rank() == 1) {
      EXPECT_THAT(at_once, HasSubstr("no use for w0"));
    }
    EXPECT_THAT(error_of([&] { model->sum().backward(); }), HasSubstr("no use for w0"));
    world.recover();
    sharded.remove_on_reduced(id);
    model->sum().backward();
    EXPECT_DOUBLE_EQ(whole_gradients(sharded)[0][0].item<double>(), 1);
  });
}

TEST(ReducedHook, OperatorsThatMixElementsAreRefusedInsideToo) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{8});
    Sharded sharded = fully_shard(model, world, test_options({}));
    sharded.on_reduced([](const NamedShard&, const at::Tensor& grad) { (void)grad.norm(); });
    EXPECT_THAT(error_of([&] { model->sum().backward(); }), HasSubstr("of the gradient of \"w0\""));
  });
}

}  // namespace
