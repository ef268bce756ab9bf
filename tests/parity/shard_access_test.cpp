// SPDX-License-Identifier: Apache-2.0
/// ShardAccess: what an optimizer of one's own does with shards.
#include "fsdp/engine/shard_access.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;
using testing::HasSubstr;

TEST(ShardAccess, HeldMemoryIsInLedgerAndPromiseAsLongAsItLives) {
  run_threads(2, [](World world) {
    Chain model(2, 4);
    Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    const Report before = sharded.report();
    {
      HeldMemory moments(sharded.shard_access(), Kind::kMoments);
      moments.add(100);
      moments.add(28);
      const HeldMemory moved = std::move(moments);
      EXPECT_EQ(moved.bytes(), 128);
      EXPECT_EQ(sharded.report().live[Kind::kMoments], before.live[Kind::kMoments] + 128);
      EXPECT_EQ(sharded.report().promise[Kind::kMoments], 128)
          << "what is held takes the place of the forecast";
    }
    EXPECT_EQ(sharded.report().live, before.live);
    EXPECT_EQ(sharded.report().promise[Kind::kMoments], 128) << "the peak stays promised";
  });
}

TEST(ShardAccess, ShardsAndFlatShardsSayWhichUnitTheyAreOf) {
  run_threads(2, [](World world) {
    Chain model(2, 4);
    Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    const std::vector<FlatShard> flats = sharded.shard_access()->flats();
    ASSERT_EQ(flats.size(), sharded.report().units.size());
    for (const NamedShard& parameter : sharded.shard_access()->named_shards()) {
      const at::Tensor& flat = flats[static_cast<std::size_t>(parameter.unit)].shard;
      EXPECT_TRUE(flat.storage().is_alias_of(parameter.shard.storage())) << parameter.name;
    }
  });
}

TEST(ShardAccess, AStepOverWholeUnitsIsASgdStep) {
  run_threads(2, [](World world) {
    constexpr double kRate = 0.5;
    std::vector<std::vector<at::Tensor>> weights;
    for (const bool is_own : {false, true}) {
      Chain model(2, 4);
      {
        const torch::NoGradGuard no_grad;  // threads share a generator: the same values each time
        for (at::Tensor& parameter : model->parameters()) {
          parameter.copy_(torch::arange(parameter.numel()).sin().view_as(parameter));
        }
      }
      Sharded sharded = fully_shard(model, world, test_options(chain_units()));
      torch::optim::SGD sgd(sharded.parameters(), torch::optim::SGDOptions(kRate));
      for (int step = 0; step < 2; ++step) {
        model->forward(torch::ones({2, 4})).sum().backward();
        if (is_own) {
          const auto access = sharded.shard_access();
          const std::vector<FlatShard> flats = access->flats();
          for (int unit = 0; unit < std::ssize(flats); ++unit) {
            access->announce_write(unit);
          }
          const OwnShards own;
          for (const FlatShard& flat : flats) {
            flat.shard.add_(flat.grad, -kRate);
          }
          access->zero_grad();
        } else {
          sgd.step();
          sharded.zero_grad();
        }
      }
      const auto full = sharded.full_parameters();
      weights.emplace_back();
      for (const at::Tensor& parameter : model->parameters()) {
        weights.back().push_back(parameter.detach().clone());
      }
    }
    for (std::size_t i = 0; i < weights[0].size(); ++i) {
      EXPECT_TRUE(torch::equal(weights[0][i], weights[1][i])) << "parameter " << i;
    }
  });
}

TEST(ShardAccess, AWriteIsRefusedWhileGradientsWait) {
  run_threads(2, [](World world) {
    Chain model(1, 4);
    Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    sharded.set_gradient_sync(GradientSync::kDeferAll);
    model->forward(torch::ones({2, 4})).sum().backward();
    EXPECT_THAT(error_of([&] { sharded.shard_access()->announce_write(0); }),
                HasSubstr("while gradients wait to be reduced"));
    sharded.zero_grad();
    sharded.shard_access()->announce_write(0);
  });
}

}  // namespace
