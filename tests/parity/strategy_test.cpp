// SPDX-License-Identifier: Apache-2.0
/// Every strategy on every mesh: numbers, traffic and memory.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;

constexpr int kLinks = 2;
constexpr std::int64_t kWidth = 5;
constexpr std::int64_t kLinkNumel = kWidth * kWidth + kWidth;
constexpr std::int64_t kRootNumel = 2 * kLinkNumel;
constexpr std::int64_t kNumel = kRootNumel + kLinks * kLinkNumel;
constexpr std::int64_t kUnits = 1 + kLinks;
constexpr std::int64_t kBytes = 8;
constexpr int kSteps = 3;

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
    return std::string(to_string(strategy)) + "_" + std::to_string(replicate) + "x" +
           std::to_string(shard) + (store == Store::kSlots ? "_slots" : "_aliased");
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int size : {1, 2, 3, 4, 6, 8}) {
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

Chain make_model() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  torch::manual_seed(7);
  Chain model(kLinks, kWidth);
  model->to(torch::kDouble);
  return model;
}

/// Rows of one rank: the same number on each.
at::Tensor rows(int rank, int size) {
  const at::Tensor all =
      torch::arange(24 * kWidth, torch::kDouble).mul(0.37).sin().view({24, kWidth});
  return all.narrow(0, rank * (24 / size), 24 / size);
}

std::vector<at::Tensor> train_alone() {
  Chain model = make_model();
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model->forward(rows(0, 1)).square().mean().backward();
    optimizer.step();
  }
  return model->parameters();
}

std::int64_t slice(std::int64_t numel, int size, std::int64_t align) {
  const std::int64_t part = (numel + size - 1) / size;
  return (part + align - 1) / align * align;
}

memory::Bytes expected_memory(const Case& of, std::int64_t align_bytes) {
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
  expected[Kind::kShards] = expected[Kind::kGradShards] = kBytes * shards;
  expected[Kind::kMoments] = 2 * kBytes * shards;
  expected[Kind::kSecondary] = kBytes * beside;
  if (of.store == Store::kSlots && of.gathers()) {
    expected[Kind::kGatherSlots] =
        kBytes * n * (of.strategy == Strategy::kShardGrad ? all : 2 * std::max(root, link));
  }
  const bool has_partial = of.reduces_over_replicas() && of.gathers();
  expected[Kind::kReduceBuffers] =
      kBytes * (n * (2 * link + root) + (has_partial ? 2 * replicas * std::max(root, link) : 0));
  return expected;
}

void expect_traffic(const Case& of, const Counters& counters, const World& world) {
  // Forward: the root, the links, and the root again; backward: the links.
  const std::int64_t once = kUnits, again = 1 + kLinks;
  const bool is_kept = of.strategy == Strategy::kShardGrad;
  const std::int64_t gathers = !of.gathers() ? 0 : is_kept ? once : once + again;
  EXPECT_EQ(counters.gathers, gathers);
  EXPECT_EQ(counters.gather_bytes, !of.gathers() ? 0 : kBytes * (is_kept ? kNumel : 2 * kNumel));
  const bool has_secondary =
      of.strategy == Strategy::kSecondaryShard && of.replicate > 1 && of.store == Store::kSlots;
  EXPECT_EQ(counters.secondary_gathers, has_secondary ? again : 0);
  EXPECT_EQ(counters.reduce_scatters, of.gathers() ? kUnits : 0);
  EXPECT_EQ(counters.reduce_bytes, of.gathers() ? kBytes * kNumel : 0);
  EXPECT_EQ(counters.replica_reductions, of.reduces_over_replicas() ? kUnits : 0);
  const bool refreshes = of.strategy == Strategy::kHybridOptimizer && of.replicate > 1;
  EXPECT_EQ(counters.refreshes, refreshes ? kUnits : 0);
  // Ranks differ in the padding of their slices: together they move the model once a replica.
  at::Tensor sums = torch::tensor({counters.replica_bytes, counters.refresh_bytes}, torch::kLong);
  world.communicator().all_reduce(sums, {.name = "test"});
  const std::int64_t replicas = of.strategy == Strategy::kReplicate ? of.size() : of.replicate;
  const std::int64_t ways = refreshes ? 1 : 2;  // there and back
  EXPECT_EQ(sums[0].item<std::int64_t>(),
            of.reduces_over_replicas() ? ways * replicas * kBytes * kNumel : 0);
  EXPECT_EQ(sums[1].item<std::int64_t>(), refreshes ? replicas * kBytes * kNumel : 0);
}

Options options_of(const Case& of, const World& world, std::int64_t align_bytes) {
  Options options = test_options(chain_units(), align_bytes);
  options.strategy = of.strategy;
  options.store = of.store;
  if (of.has_mesh()) {
    options.mesh = DeviceMesh(world, of.replicate, of.shard);
  }
  return options;
}

void expect_like_one_process(const Case& of, const World& world, std::int64_t align_bytes,
                             const std::vector<at::Tensor>& expected, bool checks_memory) {
  SCOPED_TRACE(of.name() + " rank " + std::to_string(world.rank()));
  Chain model = make_model();
  Sharded sharded = fully_shard(model, world, options_of(of, world, align_bytes));
  const memory::Bytes memory = expected_memory(of, align_bytes);
  if (checks_memory) {
    EXPECT_EQ(sharded.promise(), memory);
  }
  optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
  for (int step = 0; step < kSteps; ++step) {
    sharded.reset_counters();
    optimizer.zero_grad();
    model->forward(rows(world.rank(), world.size())).square().mean().backward();
    expect_traffic(of, sharded.counters(), world);
    optimizer.step();
    EXPECT_EQ(sharded.unsharded_numel(), 0);
    EXPECT_EQ(sharded.ledger().live(), sharded.promise()) << "Fault 93, step " << step;
  }
  EXPECT_EQ(sharded.ledger().peak(), sharded.promise());
  const auto full = sharded.full_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(model->parameters()[i], expected[i], 0, 1e-12)) << i;
  }
}

class Strategies : public testing::TestWithParam<Case> {};

TEST_P(Strategies, EqualOneProcessInNumbersAndTheirFormulasInTrafficAndMemory) {
  const std::vector<at::Tensor> expected = train_alone();
  for (const std::int64_t align_bytes : {0, 128}) {
    if (align_bytes > 0 && GetParam().size() > 4) {
      break;  // more ranks show no more of padding
    }
    run_threads(GetParam().size(), [&](World world) {
      expect_like_one_process(GetParam(), world, align_bytes, expected, /*checks_memory=*/true);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(AllMeshes, Strategies, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name(); });

class StrategyProcesses : public testing::TestWithParam<std::string> {};

TEST_P(StrategyProcesses, FourProcessesEqualOne) {
  for (const auto& result : run_processes(4, "strategies", [](int) {
         const World world = init({.transport = GetParam()});
         const std::vector<at::Tensor> expected = train_alone();
         for (const Store store : {Store::kSlots, Store::kAliased}) {
           for (const Case& of :
                {Case{Strategy::kShardGrad, 1, 4, store}, Case{Strategy::kReplicate, 1, 4, store},
                 Case{Strategy::kHybrid, 2, 2, store},
                 Case{Strategy::kHybridOptimizer, 2, 2, store},
                 Case{Strategy::kSecondaryShard, 2, 2, store}}) {
             expect_like_one_process(of, world, 128, expected, /*checks_memory=*/false);
           }
         }
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, StrategyProcesses, testing::Values("shm", "gloo"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
