// SPDX-License-Identifier: Apache-2.0
/// Deferred initialisation: the same bits as eager initialisation, at any world size, in the memory
/// of one unit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "fsdp/models/gpt.hpp"
#include "support/counting_allocator.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

/// Much of what init code does: layers, loops over parameters, ties, tables, casts, own draws.
struct Zoo : nn::Module {
  Zoo()
      : linear(register_module("linear", nn::Linear(5, 7))),
        embedding(register_module("embedding",
                                  nn::Embedding(nn::EmbeddingOptions(11, 7).padding_idx(2)))),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2)))),
        norm(register_module("norm", nn::BatchNorm1d(4))),
        conv(register_module("conv", nn::Conv2d(2, 3, 3))),
        attention(register_module("attention", nn::MultiheadAttention(8, 2))) {
    scaled = register_parameter("scaled", torch::randn({4, 4}) * 0.02);
    orthogonal = register_parameter("orthogonal", torch::empty({5, 3}));
    nn::init::orthogonal_(orthogonal);
    mask = register_buffer("mask", torch::ones({6, 6}).tril());
    table = register_buffer("table", torch::tensor(std::vector<float>{1, 2, 3, 4}));
    scalar = register_parameter("scalar", torch::tensor(3.5));
    torch::NoGradGuard no_grad;
    for (const at::Tensor& weight : {linear->weight, conv->weight}) {
      weight.normal_(0, 0.3);  // once more: the first values are drawn for nothing
    }
    linear->weight.select(0, 1).mul_(2).add_(linear->bias[3]);
    linear->bias.copy_(torch::bernoulli(torch::full({7}, 0.5)));
    embedding->weight.detach().narrow(0, 0, 2).copy_(linear->weight.narrow(1, 0, 2).t());
    linear->weight.zero_();  // after it was read
    linear->weight.uniform_(-1, 1);
    scaled.data().add_(scaled.t().contiguous());
  }
  nn::Linear linear;
  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::BatchNorm1d norm;
  nn::Conv2d conv;
  nn::MultiheadAttention attention;
  at::Tensor scaled, orthogonal, mask, table, scalar;
};

std::vector<std::pair<std::string, at::Tensor>> all_tensors(const nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module.named_parameters()) {
    all.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    all.emplace_back(item.key(), item.value());
  }
  return all;
}

void expect_equal_modules(const nn::Module& actual, const nn::Module& expected) {
  const auto left = all_tensors(actual);
  const auto right = all_tensors(expected);
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(torch::equal(left[i].second, right[i].second)) << left[i].first;
  }
}

template <class Make>
auto seeded(std::uint64_t seed, Make make) {
  torch::manual_seed(seed);
  return make();
}

std::shared_ptr<Zoo> make_zoo() { return std::make_shared<Zoo>(); }

TEST(DeferredInitTest, AModuleThatIsUsedWithoutShardingFillsItself) {
  const auto eager = seeded(11, make_zoo);
  const auto deferred = seeded(11, [] { return deferred_init(make_zoo); });
  for (const auto& [name, tensor] : all_tensors(*deferred)) {
    EXPECT_TRUE(is_deferred(tensor) || name == "table") << name;
  }
  expect_equal_modules(*deferred, *eager);
  for (const auto& [name, tensor] : all_tensors(*deferred)) {
    EXPECT_FALSE(is_deferred(tensor)) << name;
  }
  const at::Tensor x = torch::ones({2, 5});
  deferred->linear(x).sum().backward();
  EXPECT_TRUE(deferred->linear->weight.grad().defined());
}

TEST(DeferredInitTest, InAnyOrderOfAsking) {
  const auto eager = seeded(12, make_zoo);
  const auto deferred = seeded(12, [] { return deferred_init(make_zoo); });
  auto tensors = all_tensors(*deferred);
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    materialize(tensor->second);
  }
  expect_equal_modules(*deferred, *eager);
}

TEST(DeferredInitTest, Fault076_Fault077_EagerBitsAtAnyWorldSizeAndUnitChoice) {
  const auto eager = seeded(13, make_zoo);
  for (const int size : {1, 2, 3, 4}) {
    for (const bool per_layer : {false, true}) {
      for (const InitialWeights start : {InitialWeights::kBroadcast, InitialWeights::kCheckEqual}) {
        std::mutex building;
        run_threads(size, [&](World world) {
          std::shared_ptr<Zoo> model;
          {
            std::lock_guard lock(building);
            model = seeded(13, [] { return deferred_init(make_zoo); });
          }
          Options options = test_options(per_layer ? units_larger_than(1) : Units());
          options.initial_weights = start;
          Sharded sharded = fully_shard(model, world, options);
          const auto scope = sharded.full_parameters();
          if (world.rank() == size - 1) {
            expect_equal_modules(*model, *eager);
          }
        });
      }
    }
  }
}

TEST(DeferredInitTest, CastsSeedsAndLaterInitFunctionsAreNotedToo) {
  const auto make = [](auto scope) {
    auto model = scope([] {
      auto made = std::make_shared<Zoo>();
      torch::manual_seed(99);  // in the middle
      nn::init::xavier_normal_(made->linear->weight);
      made->to(torch::kDouble);
      return made;
    });
    nn::init::uniform_(model->scaled, 2, 3);  // after the scope
    return model;
  };
  const auto eager = seeded(14, [&] { return make([](auto body) { return body(); }); });
  const auto deferred =
      seeded(14, [&] { return make([](auto body) { return deferred_init(body); }); });
  EXPECT_TRUE(is_deferred(deferred->scaled));
  EXPECT_TRUE(is_deferred(deferred->linear->weight));
  EXPECT_TRUE(torch::equal(deferred->linear->weight, eager->linear->weight));
  EXPECT_EQ(deferred->scaled.scalar_type(), torch::kDouble);
  EXPECT_GE(deferred->scaled.min().item<double>(), 2.0);
}

TEST(DeferredInitTest, ValuesMayBeReadInsideOfTheScope) {
  torch::manual_seed(5);
  const double eager = torch::rand({3}).sum().item<double>();
  torch::manual_seed(5);
  const double read = deferred_init([] { return torch::rand({3}).sum().item<double>(); });
  EXPECT_EQ(read, eager);
}

TEST(DeferredInitTest, RawAccessAndChangedSourcesAreRefused) {
  const at::Tensor weight = deferred_init([] { return torch::rand({3}); });
  EXPECT_NE(error_of([&] { weight.data_ptr<float>()[0] = 1; }).find("fsdp::materialize"),
            std::string::npos);
  const at::Tensor source = torch::ones({3});
  const at::Tensor copy = deferred_init([&] { return torch::empty({3}).copy_(source); });
  source.add_(1);
  EXPECT_NE(error_of([&] { materialize(copy); }).find("was changed since"), std::string::npos);
}

/// Counts how often each module's own init runs, and leaves nothing unset.
struct Nest : nn::Module {
  explicit Nest(int depth) : weight(register_parameter("weight", torch::full({3}, NAN))) {
    if (depth > 1) {
      inner = register_module("inner", std::make_shared<Nest>(depth - 1));
    }
    ++runs;
    nn::init::normal_(weight);
  }
  at::Tensor weight;
  std::shared_ptr<Nest> inner;
  static inline int runs = 0;
};

TEST(DeferredInitTest, Fault076_EachModulesInitRunsOnceAndLeavesNothingUnset) {
  Nest::runs = 0;
  const auto model = deferred_init([] { return std::make_shared<Nest>(3); });
  run_threads(1, [&](World world) {
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_EQ(Nest::runs, 3);
    const auto scope = sharded.full_parameters();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_FALSE(parameter.isnan().any().item<bool>());
    }
  });
}

std::int64_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  status >> total >> resident;
  return resident * 4096;
}

TEST(DeferredInitTest, AModuleOfFortyGigabytesIsBuilt) {
  const std::int64_t before = resident_bytes();
  const auto model = deferred_init([] {
    nn::Sequential made(nn::Linear(50000, 100000), nn::LayerNorm(nn::LayerNormOptions({100000})));
    made->push_back(nn::Linear(100000, 50000));
    return made;
  });
  std::int64_t bytes = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    bytes += static_cast<std::int64_t>(parameter.nbytes());
    EXPECT_TRUE(is_deferred(parameter));
  }
  EXPECT_GT(bytes, 40'000'000'000);
  EXPECT_LT(resident_bytes() - before, 64 << 20);
}

TEST(DeferredInitTest, ShardingHoldsOneUnitAtATime) {
  install_counting_allocator();
  static constexpr std::int64_t kWidth = 256;
  static constexpr int kLayers = 12;
  torch::manual_seed(1);
  const auto model = deferred_init([] {
    nn::Sequential made;
    for (int i = 0; i < kLayers; ++i) {
      made->push_back(nn::Linear(kWidth, kWidth));
    }
    for (const at::Tensor& parameter : made->parameters()) {
      nn::init::normal_(parameter);  // all numbers are drawn twice
    }
    return made;
  });
  const std::int64_t weight = kWidth * kWidth * 4;
  run_threads(1, [&](World world) {
    reset_allocator_counts();
    const std::int64_t before = allocator_counts().live_bytes;
    Options options = test_options(units_of<nn::Linear>());
    options.memory.store = Store::kSlots;
    Sharded sharded = fully_shard(model, world, options);
    const std::int64_t kept = sharded.report().live.total();
    const std::int64_t beside = allocator_counts().peak_bytes - before - kept;
    // The parameter that is filled and one whose numbers are drawn on the way; states of
    // generators.
    EXPECT_LE(beside, 2 * weight + kLayers * 4 * 8192);
  });
}

}  // namespace
