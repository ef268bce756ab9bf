// SPDX-License-Identifier: Apache-2.0
/// What distributing, saving and loading cost in memory: what stays, one copy of the shards and
/// moments, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>

#include "fsdp/optim/adamw.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/counting_allocator.hpp"
#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTensors = 20;
constexpr std::int64_t kNumel = 1 << 18;  ///< 1 MiB of float
constexpr std::int64_t kModelBytes = kTensors * kNumel * 4;
constexpr int kUnits = 10;
constexpr std::int64_t kUnitBytes = 512 * 512 * 4;
/// Reports, sums and other small tensors of all ranks.
constexpr std::int64_t kSmall = 128 << 10;

struct Rows : torch::nn::Module {
  Rows() {
    for (std::int64_t i = 0; i < kTensors; ++i) {
      register_parameter("w" + std::to_string(i), torch::ones({kNumel}));
    }
  }
};

// Counts are of the whole process, so of both ranks together; barriers keep phases apart.
TEST(CheckpointMemoryTest, Fault096_Fault079_ASaveTakesOneCopyAndALoadNothing) {
  install_counting_allocator();
  const TemporaryDirectory directory;
  std::int64_t for_snapshots = 0, while_saving = 0, while_loading = 0;
  run_threads(kRanks, [&](World world) {
    const auto measured = [&](auto&& action) {
      world.barrier();
      std::int64_t before = 0;
      if (world.rank() == 0) {
        reset_allocator_counts();
        before = allocator_counts().live_bytes;
      }
      world.barrier();
      action();
      world.barrier();
      return allocator_counts().peak_bytes - before;
    };
    Sharded sharded =
        fully_shard(std::static_pointer_cast<torch::nn::Module>(std::make_shared<Rows>()), world,
                    test_options({}));
    optim::AdamW optimizer(sharded);
    std::unique_ptr<checkpoint::Saver> saver;
    const std::int64_t snapshots = measured([&] {
      saver = std::make_unique<checkpoint::Saver>(directory.path(), sharded,
                                                  checkpoint::state_of(optimizer));
    });
    const std::int64_t saving = measured([&] {
      saver->save(1);
      saver->wait();
    });
    const auto state = checkpoint::state_of(optimizer);
    const std::int64_t loading =
        measured([&] { checkpoint::load(directory.path(), sharded, state.get()); });
    if (world.rank() == 0) {
      for_snapshots = snapshots;
      while_saving = saving;
      while_loading = loading;
    }
  });
  EXPECT_GE(for_snapshots, 3 * kModelBytes) << "weights and two moments";
  EXPECT_LE(for_snapshots, 3 * kModelBytes + kSmall);
  EXPECT_LE(while_saving, kSmall);
  EXPECT_LE(while_loading, kSmall) << "each rank reads into its own shards";
}

TEST(CheckpointMemoryTest, Fault080_DistributingAModelTakesWhatStaysOnEveryRank) {
  const auto results = run_processes(kRanks, "ranks", [](int) {
    install_counting_allocator();
    const World world = init({.transport = "gloo"});
    torch::nn::Sequential model;
    for (int i = 0; i < kUnits; ++i) {
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(512, 512).bias(false)));
    }
    reset_allocator_counts();
    const std::int64_t before = allocator_counts().live_bytes;
    Options options = test_options(units_of<torch::nn::Linear>());
    options.memory.store = Store::kSlots;
    const Sharded sharded = fully_shard(model, world, options);
    const memory::Bytes stays = sharded.report().live;
    ASSERT_EQ(stays[memory::Kind::kShards], kUnits * kUnitBytes / kRanks);
    EXPECT_LE(allocator_counts().peak_bytes - before, stays.total() + kSmall);
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
}  // namespace fsdp::test
