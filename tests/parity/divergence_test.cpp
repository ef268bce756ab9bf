// SPDX-License-Identifier: Apache-2.0
/// Ranks that part in forward or in backward alone: all learn it at once, with both operations, and
/// nothing of another unit is ever taken for a weight or a gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
namespace nn = torch::nn;

constexpr int kRanks = 3;
constexpr double kTimeoutSeconds = 4;

/// Four layers of one shape: their collectives have equal sizes.
struct Net : nn::Module {
  Net() {
    torch::NoGradGuard no_grad;
    for (const char* name : {"a", "b", "c", "d"}) {
      layers.push_back(register_module(name, nn::Linear(4, 4)));
      layers.back()->weight.fill_(0.1 * static_cast<double>(layers.size()));
      layers.back()->bias.fill_(0.01 * static_cast<double>(layers.size()));
    }
  }
  at::Tensor run(const std::vector<int>& order, at::Tensor x) {
    for (int layer : order) {
      x = torch::tanh(layers[static_cast<std::size_t>(layer)](x));
    }
    return x;
  }
  std::vector<nn::Linear> layers;
};

at::Tensor x() { return torch::ones({2, 4}); }

/// One step on one rank: runs backward.
using Step = std::function<void(Net&, bool is_odd)>;

/// After `good_steps` equal steps rank 1 is the odd one out. All ranks must throw at once; after
/// recover() the weights have the bits of before and a good step runs.
void expect_divergence(World world, int good_steps, int prefetch, const Step& step,
                       const testing::Matcher<std::string>& is_expected) {
  SCOPED_TRACE(testing::Message() << good_steps << " good steps, prefetch " << prefetch);
  const auto net = std::make_shared<Net>();
  Sharded sharded = fully_shard(net, world, test_options(units_of<nn::Linear>(), 0, prefetch));
  const auto weights = [&] {
    const auto full = sharded.full_parameters();
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : net->parameters()) {
      copies.push_back(parameter.detach().clone());
    }
    return copies;
  };
  const auto expected = weights();
  for (int i = 0; i < good_steps; ++i) {
    step(*net, false);
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] {
    step(*net, world.rank() == 1);
    world.barrier();
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (world.transport().traits().name == "gloo") {
    EXPECT_THAT(error, is_expected);
    EXPECT_LT(seconds.count(), kTimeoutSeconds - 1);
  } else {
    // Threads read each other's memory: one that waits for a reader learns the rest by time-out.
    EXPECT_NE(error, "no error");
    EXPECT_LT(seconds.count(), kTimeoutSeconds + 2);
  }
  world.recover();
  const auto actual = weights();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
  step(*net, false);
  const auto gradients = whole_gradients(sharded);
  Net reference;
  step(reference, false);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& grad = reference.parameters()[i].grad();
    EXPECT_TRUE(torch::allclose(
        gradients[i], grad.defined() ? grad : torch::zeros_like(gradients[i]), 1e-5, 1e-7))
        << i;
  }
}

void expect_divergence_always(const Step& step, const testing::Matcher<std::string>& is_expected) {
  on_all_transports(kRanks, kTimeoutSeconds, [&](World world) {
    for (const int good_steps : {0, 2}) {
      for (const int prefetch : {0, 1}) {
        const bool is_last = good_steps > 0 && prefetch > 0;
        if (world.transport().traits().name == "gloo" || is_last) {
          expect_divergence(world, good_steps, prefetch, step, is_expected);
        }
      }
    }
  });
}

testing::Matcher<std::string> names(const char* one, const char* other) {
  return AllOf(HasSubstr(" met "), HasSubstr(std::string("unit \"") + one + "\""),
               HasSubstr(std::string("unit \"") + other + "\""), HasSubstr("on rank 1"));
}

TEST(Divergence, Fault004_TwoUnitsOfOneShapeInAnotherOrderAreBothNamed) {
  expect_divergence_always(
      [](Net& net, bool is_odd) {
        net.run(is_odd ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, x()).sum().backward();
      },
      names("a", "b"));
}

TEST(Divergence, Fault012_AnotherOrderOnOneRankIsNamedAfterAnyNumberOfSteps) {
  expect_divergence_always(
      [](Net& net, bool is_odd) {
        net.run(is_odd ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 1, 2, 3}, x())
            .sum()
            .backward();
      },
      ContainsRegex("unit \"[abcd]\".*met.*unit \"[abcd]\""));
}

TEST(Divergence, Fault001_ABranchThatOneRankDetachesIsNamedInBackward) {
  expect_divergence_always(
      [](Net& net, bool is_odd) {
        const at::Tensor y = net.run({0, 1}, x());
        net.run({2, 3}, is_odd ? y.detach() : y).sum().backward();
      },
      ContainsRegex("(all-gather|reduce-scatter) #[0-9]+ of unit \"[abcd]\".*met "
                    "(all-gather|reduce-scatter) #[0-9]+ of unit \"[abcd]\""));
}

TEST(Divergence, Fault011_GradientsThatOneRankDoesNotHaveAreNamed) {
  expect_divergence_always(
      [](Net& net, bool is_odd) {
        const nn::Linear& c = net.layers[2];
        const at::Tensor y = net.run({0, 1}, x());
        // The same weights are gathered in forward and backward; they get no gradients.
        const at::Tensor z = is_odd ? torch::linear(y, c->weight.detach(), c->bias.detach())
                                    : torch::linear(y, c->weight, c->bias);
        net.run({3}, z).sum().backward();
      },
      AllOf(ContainsRegex("reduce-scatter #[0-9]+ of unit \"c\""), HasSubstr(" met ")));
}

TEST(Divergence, Fault004_WhatDoesNotMatchIsNotTaken) {
  on_all_transports(kRanks, kTimeoutSeconds, [](World world) {
    const comm::Link& group = world.link();
    const comm::Label label{.unit = world.rank() == 1, .name = world.rank() == 1 ? "b" : "a"};
    const at::Tensor dst = torch::full({4 * kRanks}, -1.0);
    EXPECT_THAT(
        error_of([&] { group.transport->all_gather(dst, torch::full({4}, 5.0), label)->wait(); }),
        HasSubstr("[mismatch]"));
    EXPECT_TRUE(dst.narrow(0, 4 * (world.rank() == 1 ? 0 : 1), 4).eq(-1).all().item<bool>());
    const at::Tensor sum = torch::full({4}, -1.0);
    EXPECT_THAT(
        error_of([&] {
          group.transport->reduce_scatter(sum, torch::full({4 * kRanks}, 5.0), {}, label)->wait();
        }),
        HasSubstr("[mismatch]"));
    EXPECT_TRUE(sum.eq(-1).all().item<bool>());
  });
}

}  // namespace
}  // namespace fsdp::test
