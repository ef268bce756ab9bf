// SPDX-License-Identifier: Apache-2.0
/// Optimizer groups by a rule on whole shapes: on shards, which are 1-D, they are what grouping by
/// dim() is in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

/// Weights of one to four dimensions, one of them tied.
struct NetImpl : nn::Module {
  NetImpl()
      : embedding(register_module("embedding", nn::Embedding(7, 4))),
        conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 2)))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})))),
        linear(register_module("linear", nn::Linear(4, 4))),
        head(register_module("head", nn::Linear(nn::LinearOptions(4, 7).bias(false)))) {
    tie_weights(*embedding, "weight", *head, "weight");
  }
  at::Tensor loss(int rank) {
    const at::Tensor x = embedding(torch::tensor({1 + rank, 3, 5}));
    const at::Tensor y = conv(x.view({1, 1, 3, 4})).mean({2, 3});
    return head(torch::tanh(linear(norm(x + y)))).square().mean();
  }
  nn::Embedding embedding;
  nn::Conv2d conv;
  nn::LayerNorm norm;
  nn::Linear linear, head;
};
TORCH_MODULE(Net);

Net make_net() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(5);
  Net net;
  net->to(torch::kDouble);
  return net;
}

std::set<std::string> names_by_dim(Net& net, bool is_matrix) {
  std::set<std::string> names;
  for (const auto& item : net->named_parameters()) {
    if ((item.value().dim() >= 2) == is_matrix && item.key() != "head.weight") {
      names.insert(item.key());
    }
  }
  return names;
}

constexpr double kRate = 0.05, kEps = 1e-4, kDecay = 0.1;

std::unique_ptr<torch::optim::Optimizer> torch_adamw(std::vector<at::Tensor> decayed,
                                                     std::vector<at::Tensor> rest) {
  using Group = torch::optim::OptimizerParamGroup;
  const auto options = torch::optim::AdamWOptions(kRate).eps(kEps);
  std::vector<Group> groups;
  groups.emplace_back(std::move(decayed),
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(options).weight_decay(kDecay)));
  groups.emplace_back(std::move(rest), std::make_unique<torch::optim::AdamWOptions>(
                                           torch::optim::AdamWOptions(options).weight_decay(0)));
  return std::make_unique<torch::optim::AdamW>(std::move(groups),
                                               torch::optim::AdamWOptions(options).weight_decay(0));
}

std::vector<at::Tensor> train_alone(int ranks, int steps) {
  Net net = make_net();
  std::vector<at::Tensor> decayed, rest;
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "head.weight") {
      (item.value().dim() >= 2 ? decayed : rest).push_back(item.value());
    }
  }
  const auto optimizer = torch_adamw(decayed, rest);
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (net->loss(rank) / ranks).backward();
    }
    optimizer->step();
  }
  return net->parameters();
}

TEST(ParamGroups, AreThoseOfOneProcessByDim) {
  run_threads(3, [](World world) {
    Net net = make_net();
    const auto matrices = names_by_dim(net, true), vectors = names_by_dim(net, false);
    EXPECT_EQ(matrices.size() + vectors.size(), 7u);
    Sharded sharded = fully_shard(net, world, test_options(units_of<nn::Linear>()));
    const auto groups = sharded.param_groups(decay_rule());
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(std::set(groups[0].names.begin(), groups[0].names.end()), matrices);
    EXPECT_EQ(std::set(groups[1].names.begin(), groups[1].names.end()), vectors);
    ASSERT_EQ(groups[0].names.size(), groups[0].parameters.size());
    std::size_t found = 0;
    for (const NamedShard& parameter : sharded.named_parameters()) {
      EXPECT_EQ(parameter.shard.dim(), 1) << "why the usual grouping is wrong here";
      for (std::size_t i = 0; i < groups[0].names.size(); ++i) {
        found += groups[0].names[i] == parameter.name &&
                 groups[0].parameters[i].is_same(parameter.shard);
      }
    }
    EXPECT_EQ(found, matrices.size());
  });
}

TEST(ParamGroups, OptimizersOfBothKindsTrainLikeOneProcess) {
  constexpr int kSteps = 4;
  for (const int size : {1, 2, 3}) {
    const auto expected = train_alone(size, kSteps);
    for (const bool is_ours : {false, true}) {
      run_threads(size, [&](World world) {
        Net net = make_net();
        Sharded sharded = fully_shard(net, world, test_options(units_of<nn::Linear>()));
        const auto groups = sharded.param_groups(decay_rule());
        std::unique_ptr<torch::optim::Optimizer> theirs;
        std::unique_ptr<optim::AdamW> ours;
        if (is_ours) {
          const optim::AdamWOptions options{.lr = kRate, .eps = kEps, .weight_decay = kDecay};
          optim::AdamWOptions plain = options;
          plain.weight_decay = 0;
          ours = std::make_unique<optim::AdamW>(
              sharded, std::vector<optim::Group<optim::AdamWOptions>>{
                           {.parameters = groups[0].names, .options = options},
                           {.parameters = groups[1].names, .options = plain}});
        } else {
          theirs = torch_adamw(groups[0].parameters, groups[1].parameters);
        }
        for (int step = 0; step < kSteps; ++step) {
          sharded.zero_grad();
          net->loss(world.rank()).backward();
          is_ours ? ours->step() : static_cast<void>(theirs->step());
        }
        const auto full = sharded.full_parameters();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::allclose(net->parameters()[i], expected[i], 0, 1e-12))
              << i << (is_ours ? ", ours" : ", LibTorch's");
        }
      });
    }
  }
}

TEST(ParamGroups, ARuleMayLeaveOutAndMustStayInItsGroups) {
  run_threads(2, [](World world) {
    Net net = make_net();
    Sharded sharded = fully_shard(net, world, test_options({}));
    const auto groups = sharded.param_groups({.groups = 3, .group_of = [](const NamedShard& of) {
                                                return of.name == "conv.weight" ? 2 : -1;
                                              }});
    EXPECT_TRUE(groups[0].names.empty());
    EXPECT_EQ(groups[2].names, std::vector<std::string>{"conv.weight"});
    EXPECT_THAT(
        error_of([&] {
          sharded.param_groups({.groups = 2, .group_of = [](const NamedShard&) { return 2; }});
        }),
        HasSubstr("\"embedding.weight\" into group 2, but has groups 0 to 1"));
    EXPECT_THAT(error_of([&] { sharded.param_groups({.groups = 1}); }), HasSubstr("no function"));
  });
}

}  // namespace
