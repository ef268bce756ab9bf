// SPDX-License-Identifier: Apache-2.0
/// Every strategy on every mesh, for a chain of two links: how it is sharded, what it must come to,
/// and what it must hold.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/strategy_name.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {

inline constexpr int kLinks = 2;
inline constexpr std::int64_t kWidth = 5;
inline constexpr std::int64_t kLinkNumel = kWidth * kWidth + kWidth;
inline constexpr std::int64_t kRootNumel = 2 * kLinkNumel;
inline constexpr std::int64_t kNumel = kRootNumel + kLinks * kLinkNumel;
inline constexpr std::int64_t kUnits = 1 + kLinks;
inline constexpr std::int64_t kBytes = 8;

/// A strategy on a mesh.
struct Case {
  Strategy strategy;
  int replicate;
  int shard;
  Store store = Store::kSlots;

  int size() const { return replicate * shard; }
  bool has_mesh() const {
    return strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
           strategy == Strategy::kSecondaryShard;
  }
  bool is_hybrid() const {
    return strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer;
  }
  /// How many ranks gather from each other; 1: nobody has to.
  bool gathers() const { return strategy != Strategy::kReplicate && !(is_hybrid() && shard == 1); }
  bool reduces_over_replicas() const {
    return strategy == Strategy::kReplicate || (is_hybrid() && (replicate > 1 || shard == 1));
  }
  std::string name() const {
    return name_of(strategy) + "_" + std::to_string(replicate) + "x" + std::to_string(shard) +
           (store == Store::kSlots ? "_slots" : "_aliased");
  }
};

/// All strategies on all meshes of the given numbers of ranks, with both stores.
inline std::vector<Case> cases(const std::vector<int>& sizes) {
  std::vector<Case> all;
  for (const int size : sizes) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGrad, Strategy::kReplicate}) {
      all.push_back({strategy, 1, size});
      all.push_back({strategy, 1, size, Store::kAliased});
    }
    for (int replicate = 1; replicate <= size; ++replicate) {
      for (const Strategy strategy :
           {Strategy::kHybrid, Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
        if (size % replicate == 0) {
          all.push_back({strategy, replicate, size / replicate});
          all.push_back({strategy, replicate, size / replicate, Store::kAliased});
        }
      }
    }
  }
  return all;
}

inline Chain make_model() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  torch::manual_seed(7);
  Chain model(kLinks, kWidth);
  model->to(torch::kDouble);
  return model;
}

/// Rows of one rank: the same number on each.
inline at::Tensor rows_of(int rank, int size) {
  const at::Tensor all =
      torch::arange(24 * kWidth, torch::kDouble).mul(0.37).sin().view({24, kWidth});
  return all.narrow(0, rank * (24 / size), 24 / size);
}

inline std::vector<at::Tensor> train_alone(int steps) {
  Chain model = make_model();
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model->forward(rows_of(0, 1)).square().mean().backward();
    optimizer.step();
  }
  return model->parameters();
}

inline std::int64_t slice(std::int64_t numel, int size, std::int64_t align) {
  const std::int64_t part = (numel + size - 1) / size;
  return (part + align - 1) / align * align;
}

inline memory::Bytes expected_memory(const Case& of, std::int64_t align_bytes) {
  const std::int64_t align = std::max<std::int64_t>(1, align_bytes / kBytes);
  const int n = of.size();
  const std::int64_t root = slice(kRootNumel, n, align), link = slice(kLinkNumel, n, align);
  const std::int64_t all = root + kLinks * link;
  const std::int64_t replicas = of.replicate;
  std::int64_t shards = all, beside = 0;
  switch (of.strategy) {
    case Strategy::kReplicate: shards = n * all; break;
    case Strategy::kHybrid: shards = replicas * all; break;
    case Strategy::kHybridOptimizer: beside = (replicas - 1) * all; break;
    case Strategy::kSecondaryShard:
      beside = replicas > 1 && of.store == Store::kSlots ? replicas * all : 0;
      break;
    default: break;
  }
  memory::Bytes expected;
  expected[memory::Kind::kShards] = expected[memory::Kind::kGradShards] = kBytes * shards;
  expected[memory::Kind::kMoments] = 2 * kBytes * shards;
  expected[memory::Kind::kSecondary] = kBytes * beside;
  if (of.store == Store::kSlots && of.gathers()) {
    expected[memory::Kind::kGatherSlots] =
        kBytes * n * (of.strategy == Strategy::kShardGrad ? all : 2 * std::max(root, link));
  }
  const bool has_partial = of.reduces_over_replicas() && of.gathers();
  expected[memory::Kind::kReduceBuffers] =
      kBytes * (n * (2 * link + root) + (has_partial ? 2 * replicas * std::max(root, link) : 0));
  return expected;
}

inline Options options_of(const Case& of, const World& world, std::int64_t align_bytes) {
  Options options = test_options(chain_units(), align_bytes);
  options.strategy = of.strategy;
  options.memory.store = of.store;
  if (of.has_mesh()) {
    options.mesh = DeviceMesh(world, of.replicate, of.shard);
  }
  return options;
}

/// Trains `steps` steps on this rank's rows as `options` say, and expects one process's weights at
/// the end, and its promise kept all along, which is `memory` unless that is null.
/// `after_backward(sharded, step)` looks at what a step did; its counters begin with it.
template <class AfterBackward>
void train_like_one_process(int steps, const World& world, const Options& options,
                            const memory::Bytes* memory, const std::vector<at::Tensor>& expected,
                            AfterBackward&& after_backward) {
  Chain model = make_model();
  Sharded sharded = fully_shard(model, world, options);
  if (memory != nullptr) {
    EXPECT_EQ(sharded.report().promise, *memory);
  }
  optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
  for (int step = 0; step < steps; ++step) {
    sharded.reset_counters();
    optimizer.zero_grad();
    model->forward(rows_of(world.rank(), world.size())).square().mean().backward();
    after_backward(sharded, step);
    optimizer.step();
    EXPECT_EQ(sharded.report().unsharded_numel, 0);
    EXPECT_EQ(sharded.report().live, sharded.report().promise) << "Fault 93, step " << step;
  }
  EXPECT_EQ(sharded.report().peak, sharded.report().promise);
  if (memory != nullptr) {
    EXPECT_EQ(sharded.report().peak, *memory);
  }
  const auto full = sharded.full_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(model->parameters()[i], expected[i], 0, 1e-12)) << i;
  }
}

}  // namespace fsdp::test
