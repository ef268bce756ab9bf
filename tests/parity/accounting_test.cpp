// SPDX-License-Identifier: Apache-2.0
/// What a step moves and holds, exactly: collectives, logical bytes, buffers, and an allocator
/// under LibTorch that agrees with the ledger to the byte.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <string>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/counting_allocator.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;

constexpr int kLinks = 4;
constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kLinkNumel = kWidth * kWidth + kWidth;
constexpr std::int64_t kRootNumel = 2 * kLinkNumel;

std::int64_t slice(std::int64_t numel, int size, std::int64_t align) {
  const std::int64_t part = (numel + size - 1) / size;
  return (part + align - 1) / align * align;
}

struct Setting {
  int size;
  int prefetch;
  bool keep_root;
  std::int64_t align_bytes;
};

class Accounting : public testing::TestWithParam<Setting> {};

TEST_P(Accounting, CollectivesAndBytesOfAStepAreExact) {
  const Setting setting = GetParam();
  run_threads(setting.size, [&](World world) {
    Chain model(kLinks, kWidth);
    Options options = test_options(chain_units(), setting.align_bytes, setting.prefetch);
    if (setting.keep_root) {
      options.rules.push_back({.units = root_unit(), .keep_gathered = true});
    }
    Sharded sharded = fully_shard(model, world, options);
    optim::AdamW optimizer(sharded);
    for (int step = 0; step < 4; ++step) {
      sharded.reset_counters();
      optimizer.zero_grad();
      model->forward(torch::ones({3, kWidth})).sum().backward();
      optimizer.step();
      // Forward: the root, the links, and the root again unless it was kept. Backward: the root is
      // still there from the turn, as are, once their order is known, the links that fit beside it;
      // the other links; the root's first layer needs no weights.
      const std::int64_t root_gathers = setting.keep_root ? 1 : 2;
      const std::int64_t link_gathers = 2 * kLinks - (step == 0 ? 0 : setting.prefetch);
      const Counters counters = sharded.report().counters;
      EXPECT_EQ(counters.gathers, root_gathers + link_gathers);
      EXPECT_EQ(counters.gather_bytes, 4 * (root_gathers * kRootNumel + link_gathers * kLinkNumel));
      EXPECT_EQ(counters.reduce_scatters, kLinks + 1);
      EXPECT_EQ(counters.reduce_bytes, 4 * (kRootNumel + kLinks * kLinkNumel));
      EXPECT_EQ(counters.prefetch_misses, 0);
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
    }
  });
}

TEST_P(Accounting, LedgerEqualsThePromiseAndTheFormulas) {
  const Setting setting = GetParam();
  run_threads(setting.size, [&](World world) {
    Chain model(kLinks, kWidth);
    Options options = test_options(chain_units(), setting.align_bytes, setting.prefetch);
    if (setting.keep_root) {
      options.rules.push_back({.units = root_unit(), .keep_gathered = true});
    }
    Sharded sharded = fully_shard(model, world, options);
    const std::int64_t align = std::max<std::int64_t>(1, setting.align_bytes / 4);
    const std::int64_t root = slice(kRootNumel, setting.size, align);
    const std::int64_t link = slice(kLinkNumel, setting.size, align);
    const std::int64_t shards = 4 * (root + kLinks * link);
    memory::Bytes expected;
    expected[Kind::kShards] = shards;
    expected[Kind::kGradShards] = shards;
    const std::int64_t in_ring = setting.keep_root ? link : std::max(root, link);
    expected[Kind::kGatherSlots] =
        4 * setting.size * ((1 + setting.prefetch) * in_ring + (setting.keep_root ? root : 0));
    expected[Kind::kReduceBuffers] = 4 * setting.size * (2 * link + root);
    EXPECT_EQ(sharded.report().live, expected);

    expected[Kind::kMoments] = 2 * shards;
    EXPECT_EQ(sharded.report().promise, expected);
    optim::AdamW optimizer(sharded);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->forward(torch::ones({3, kWidth})).sum().backward();
      optimizer.step();
    }
    EXPECT_EQ(sharded.report().live, expected);
    EXPECT_EQ(sharded.report().peak, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Settings, Accounting,
                         testing::Values(Setting{1, 1, false, 0}, Setting{2, 0, false, 0},
                                         Setting{2, 1, false, 128}, Setting{2, 2, false, 0},
                                         Setting{3, 1, true, 0}, Setting{4, 2, true, 128},
                                         Setting{7, 1, false, 128}),
                         [](const auto& tested) {
                           const Setting& s = tested.param;
                           return std::to_string(s.size) + "ranks_prefetch" +
                                  std::to_string(s.prefetch) + (s.keep_root ? "_kept" : "") +
                                  "_align" + std::to_string(s.align_bytes);
                         });

/// Tensor memory that a step of plain LibTorch takes at its peak and how often it allocates.
AllocatorCounts plain_step_counts(std::int64_t width, const at::Tensor& x) {
  Chain model(kLinks, width);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    reset_allocator_counts();
    model->forward(x).sum().backward();
  }
  return allocator_counts();
}

void expect_allocator_agrees(const World& world, std::int64_t own_staging) {
  const std::int64_t width = 32;
  const at::Tensor x = torch::ones({3, width});
  const AllocatorCounts plain = plain_step_counts(width, x);
  const std::int64_t before_model = allocator_counts().live_bytes;
  Chain model(kLinks, width);
  {
    Sharded sharded = fully_shard(model, world, test_options(chain_units(), 128));
    // The module's own weights are gone; what is there instead is the ledger.
    EXPECT_EQ(allocator_counts().live_bytes - before_model, sharded.report().live.total());
    EXPECT_EQ(sharded.report().live[Kind::kStaging], own_staging);
    optim::AdamW optimizer(sharded);
    EXPECT_EQ(allocator_counts().live_bytes - before_model, sharded.report().promise.total());
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      reset_allocator_counts();
      model->forward(x).sum().backward();
      // The engine allocates nothing: LibTorch makes its activations and gradients, no more than
      // without sharding, and gradients go as soon as they come.
      EXPECT_LE(allocator_counts().allocations, plain.allocations);
      optimizer.step();
      EXPECT_EQ(allocator_counts().live_bytes - before_model, sharded.report().promise.total())
          << step;
    }
    EXPECT_EQ(sharded.report().peak_total, sharded.report().promise.total());
  }
}

TEST(Allocator, AgreesWithTheLedgerToTheByteOnOneRank) {
  install_counting_allocator();
  run_threads(1, [](World world) { expect_allocator_agrees(world, 0); });
}

TEST(Allocator, AgreesWithTheLedgerToTheByteOverGloo) {
  for (const auto& result : run_processes(2, "allocator", [](int) {
         install_counting_allocator();
         const World world = init({.transport = "gloo"});
         // A reduce-scatter receives the other rank's half of the largest unit, the root.
         const std::int64_t root = 2 * (32 * 32 + 32);
         expect_allocator_agrees(world, 4 * slice(root, 2, 32));
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// ---- weights and gradients in shared memory ---------------------------------------------------

TEST(SharedWeights, TheLedgerOverShmIsShardsBuffersAndStaging) {
  for (const auto& result : run_processes(2, "ledger", [](int) {
         const World world = init({.transport = "shm"});
         Chain model(kLinks, kWidth);
         Sharded sharded = fully_shard(model, world, test_options(chain_units(), 128));
         const std::int64_t root = 4 * slice(kRootNumel, 2, 32);
         const std::int64_t link = 4 * slice(kLinkNumel, 2, 32);
         memory::Bytes expected;
         expected[Kind::kShards] = root + kLinks * link;
         expected[Kind::kGradShards] = root + kLinks * link;
         expected[Kind::kReduceBuffers] = 2 * (2 * link + root);
         expected[Kind::kStaging] = 512 * 1024;
         EXPECT_EQ(sharded.report().live, expected);
         optim::AdamW optimizer(sharded);
         for (int step = 0; step < 3; ++step) {
           optimizer.zero_grad();
           model->forward(torch::ones({3, kWidth})).sum().backward();
           optimizer.step();
         }
         expected[Kind::kMoments] = 2 * (root + kLinks * link);
         EXPECT_EQ(sharded.report().promise, expected);
         EXPECT_EQ(sharded.report().peak, expected);
         EXPECT_EQ(sharded.report().counters.reduce_scatters, 3 * (kLinks + 1));
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

std::size_t count_in(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// How many agreements protect the shared weights in three steps and an evaluation.
std::size_t fences_over(const std::string& transport) {
  const auto results = run_processes(2, transport,
                                     [&](int) {
                                       const World world = init({.transport = transport});
                                       Chain model(kLinks, kWidth);
                                       Options options = test_options(chain_units(), 128);
                                       options.memory.store = Store::kAliased;
                                       Sharded sharded = fully_shard(model, world, options);
                                       optim::AdamW optimizer(sharded);
                                       for (int step = 0; step < 3; ++step) {
                                         optimizer.zero_grad();
                                         model->forward(torch::ones({3, kWidth})).sum().backward();
                                         if (step == 2) {
                                           const torch::NoGradGuard no_grad;
                                           model->forward(torch::ones({3, kWidth}));
                                         }
                                         optimizer.step();
                                       }
                                     },
                                     {.environment = {{"FSDP_LOG", "debug"}}});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  return count_in(results[0].output, "done with the shared weights\" starts");
}

TEST(SharedWeights, TellingWhichGradientsThereAreIsTheFence) {
  // What is left is the one before the optimizer's step after an evaluation.
  const std::size_t over_gloo = fences_over("gloo");
  const std::size_t over_shm = fences_over("shm");
  EXPECT_EQ(over_gloo, 1u);
  EXPECT_EQ(over_shm, 1u);
}

}  // namespace
