// SPDX-License-Identifier: Apache-2.0
/// Every strategy on every mesh: numbers, traffic and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"
#include "support/strategy_cases.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

constexpr int kSteps = 3;

void expect_traffic(const Case& of, const Counters& counters, const World& world, int step) {
  // Forward: the root, the links, and the root again; backward: the links, but the last, once it is
  // known to come next.
  const std::int64_t stay = step == 0 ? 0 : 1;
  const std::int64_t once = kUnits, again = 1 + kLinks - stay;
  const bool is_kept = of.strategy == Strategy::kShardGrad;
  const std::int64_t gathers = !of.gathers() ? 0 : is_kept ? once : once + again;
  EXPECT_EQ(counters.gathers, gathers);
  const std::int64_t numel = is_kept ? kNumel : 2 * kNumel - stay * kLinkNumel;
  EXPECT_EQ(counters.gather_bytes, of.gathers() ? kBytes * numel : 0);
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
  world.transport().all_reduce(sums, {.name = "test"});
  const std::int64_t replicas = of.strategy == Strategy::kReplicate ? of.size() : of.replicate;
  const std::int64_t ways = refreshes ? 1 : 2;  // there and back
  EXPECT_EQ(sums[0].item<std::int64_t>(),
            of.reduces_over_replicas() ? ways * replicas * kBytes * kNumel : 0);
  EXPECT_EQ(sums[1].item<std::int64_t>(), refreshes ? replicas * kBytes * kNumel : 0);
}

void expect_like_one_process(const Case& of, const World& world, std::int64_t align_bytes,
                             const std::vector<at::Tensor>& expected, bool checks_memory) {
  SCOPED_TRACE(of.name() + " rank " + std::to_string(world.rank()));
  const memory::Bytes memory = expected_memory(of, align_bytes);
  train_like_one_process(kSteps, world, options_of(of, world, align_bytes),
                         checks_memory ? &memory : nullptr, expected,
                         [&](Sharded& sharded, int step) {
                           expect_traffic(of, sharded.report().counters, world, step);
                         });
}

class Strategies : public testing::TestWithParam<Case> {};

TEST_P(Strategies, EqualOneProcessInNumbersAndTheirFormulasInTrafficAndMemory) {
  const std::vector<at::Tensor> expected = train_alone(kSteps);
  for (const std::int64_t align_bytes : {0, 128}) {
    if (align_bytes > 0 && GetParam().size() > 4) {
      break;  // more ranks show no more of padding
    }
    run_threads(GetParam().size(), [&](World world) {
      expect_like_one_process(GetParam(), world, align_bytes, expected, /*checks_memory=*/true);
    });
  }
}

TEST(MeshAxes, AnyOrderTrainsLikeOneProcessAndUnknownOnesAreRefused) {
  const std::vector<at::Tensor> expected = train_alone(kSteps);
  run_threads(6, [&](World world) {
    const DeviceMesh mesh(world, {{"tensor", 1}, {"shard", 3}, {"replicate", 2}});
    const DeviceMesh other(world, {{"tensor", 3}, {"shard", 2}});
    for (const Strategy strategy :
         {Strategy::kHybrid, Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
      const Case of{.strategy = strategy, .replicate = 2, .shard = 3};
      SCOPED_TRACE(of.name());
      const memory::Bytes memory = expected_memory(of, /*align_bytes=*/0);
      Options options = test_options(chain_units(), /*align_bytes=*/0);
      options.strategy = strategy;
      options.memory.store = Store::kSlots;
      options.mesh = mesh;
      train_like_one_process(kSteps, world, options, &memory, expected,
                             [&](Sharded& sharded, int step) {
                               expect_traffic(of, sharded.report().counters, world, step);
                             });
      options.mesh = other;
      EXPECT_THAT(error_of([&] { fully_shard(make_model(), world, options); }),
                  testing::HasSubstr(std::string("the strategy ") + to_string(strategy) +
                                     " does not know the axis \"tensor\" of the mesh tensor 3 x "
                                     "shard 2, which has 3 ranks"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllMeshes, Strategies, testing::ValuesIn(cases({1, 2, 3, 4, 6, 8})),
                         [](const auto& tested) { return tested.param.name(); });

class StrategyProcesses : public testing::TestWithParam<std::string> {};

TEST_P(StrategyProcesses, FourProcessesEqualOne) {
  for (const auto& result : run_processes(4, "strategies", [](int) {
         const World world = init({.transport = GetParam()});
         const std::vector<at::Tensor> expected = train_alone(kSteps);
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
