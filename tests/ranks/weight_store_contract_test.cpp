// SPDX-License-Identifier: Apache-2.0
/// The contract of engine::WeightStore, for both kinds (slots and aliased memory) over every
/// transport, crossed with world sizes, counts and dtypes: what each rank puts into its shard is
/// what every rank reads of the whole unit, and a change of the shards is what the next gather
/// brings.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <vector>

#include "engine/store/weight_store.hpp"
#include "fsdp/base/error.hpp"
#include "ranks/transport_harness.hpp"

namespace fsdp {
namespace {

using engine::Slice;
using engine::Unit;
using engine::WeightStore;

constexpr std::int64_t kCounts[] = {0, 1, 13, 40001};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16,    at::kInt,
                                      at::kLong,  at::kBool,   at::kComplexFloat};

Unit make_unit(const std::string& name, int bundle, std::int64_t numel, const comm::Link& link,
               at::ScalarType dtype) {
  Unit unit;
  unit.name = name;
  unit.bundle = bundle;
  unit.dtype = unit.param_dtype = dtype;
  unit.placement = engine::make_placement(Strategy::kFullShard, *link.transport);
  unit.layout =
      std::make_unique<layout::UnitLayout>(std::vector<std::int64_t>{numel}, link.size(), 1);
  return unit;
}

/// What rank `rank` holds in its shard in a given round.
at::Tensor shard_values(const Unit& unit, int rank, int round) {
  const at::Tensor index = at::arange(unit.layout->shard_numel(), at::kDouble);
  const at::Tensor values = index.remainder(101.0) + rank * 7 + round * 3;
  return unit.dtype == at::kBool ? values.remainder(2.0).gt(0) : values.to(unit.dtype);
}

at::Tensor whole(WeightStore& store, const Unit& unit, int index, int slot) {
  return at::from_blob(store.address(index, slot), {unit.layout->padded_numel()}, unit.dtype);
}

void expect_round(WeightStore& store, const std::vector<Unit>& units,
                  const std::deque<Slice>& slices, int size, int rank, int round) {
  for (std::size_t index = 0; index < units.size(); ++index) {
    slices[index].shard().copy_(shard_values(units[index], rank, round));
  }
  // Both gathers under way at once, waited for in the order in which they were issued.
  store.start(0, 0, slices[0]);
  store.start(1, 1, slices[1]);
  for (int index = 0; index < 2; ++index) {
    const Unit& unit = units[static_cast<std::size_t>(index)];
    store.wait(index);
    const at::Tensor all = whole(store, unit, index, index);
    for (int r = 0; r < size; ++r) {
      const std::int64_t numel = unit.layout->shard_numel();
      EXPECT_TRUE(torch::equal(all.narrow(0, r * numel, numel), shard_values(unit, r, round)))
          << "unit " << index << " slice " << r << " round " << round;
    }
  }
  for (int index = 0; index < 2; ++index) {
    store.release(index, index, /*poison=*/true);
  }
}

enum class Kind { kSlots, kAliased };

class WeightStoreContract : public testing::TestWithParam<std::tuple<std::string, Kind, int>> {};

TEST_P(WeightStoreContract, EveryRankReadsWhatEachRankHolds) {
  const std::string transport = std::get<0>(GetParam());
  const Kind kind = std::get<1>(GetParam());
  const int size = std::get<2>(GetParam());
  for (const std::int64_t count : kCounts) {
    test::run_ranks(transport, size, [&](const comm::Link& link) {
      for (const at::ScalarType dtype : kDtypes) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + " x " + std::to_string(count));
        memory::Ledger ledger;
        {
          std::vector<Unit> units;
          units.push_back(make_unit("first", 0, count, link, dtype));
          units.push_back(make_unit("second", 1, 2 * count + 1, link, dtype));
          const engine::Bundles bundles(units);
          const auto store = kind == Kind::kSlots
                                 ? engine::make_slot_store(units, bundles, ledger, {.slots = 2})
                                 : engine::make_aliased_store(units);
          const std::vector<at::Tensor> memory = store->make_slices();
          std::deque<Slice> slices;
          EXPECT_EQ(store->needs_fence(), kind == Kind::kAliased);
          std::int64_t shards = 0;
          for (int index = 0; index < std::ssize(units); ++index) {
            const Unit& unit = units[static_cast<std::size_t>(index)];
            slices.emplace_back(unit, index, ledger, memory[static_cast<std::size_t>(index)]);
            EXPECT_EQ(slices.back().shard().numel(), unit.layout->shard_numel());
            shards += unit.shard_bytes();
          }
          EXPECT_EQ(ledger.live()[memory::Kind::kShards], shards);
          const std::int64_t largest =
              std::max(units[0].gathered_bytes(), units[1].gathered_bytes());
          const std::int64_t slots = kind == Kind::kSlots ? 2 * largest : 0;
          EXPECT_EQ(ledger.live()[memory::Kind::kGatherSlots], slots);
          for (int round = 0; round < 2; ++round) {
            expect_round(*store, units, slices, size, link.rank(), round);
            // Where ranks read each other's shards in place, nobody writes before all have read.
            if (store->needs_fence()) {
              link.job->barrier({.name = "fence"});
            }
          }
        }
        EXPECT_EQ(ledger.live().total(), 0);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(AllStores, WeightStoreContract,
                         testing::Values(std::tuple{std::string("threads"), Kind::kSlots, 1},
                                         std::tuple{std::string("threads"), Kind::kSlots, 2},
                                         std::tuple{std::string("threads"), Kind::kSlots, 3},
                                         std::tuple{std::string("threads"), Kind::kSlots, 4},
                                         std::tuple{std::string("threads"), Kind::kSlots, 7},
                                         std::tuple{std::string("threads"), Kind::kAliased, 1},
                                         std::tuple{std::string("threads"), Kind::kAliased, 2},
                                         std::tuple{std::string("threads"), Kind::kAliased, 3},
                                         std::tuple{std::string("threads"), Kind::kAliased, 4},
                                         std::tuple{std::string("threads"), Kind::kAliased, 7},
                                         std::tuple{std::string("gloo"), Kind::kSlots, 1},
                                         std::tuple{std::string("gloo"), Kind::kSlots, 2},
                                         std::tuple{std::string("gloo"), Kind::kSlots, 3},
                                         std::tuple{std::string("gloo"), Kind::kSlots, 4},
                                         std::tuple{std::string("gloo"), Kind::kSlots, 7},
                                         std::tuple{std::string("gloo"), Kind::kAliased, 1},
                                         std::tuple{std::string("gloo"), Kind::kAliased, 2},
                                         std::tuple{std::string("gloo"), Kind::kAliased, 3},
                                         std::tuple{std::string("gloo"), Kind::kAliased, 4},
                                         std::tuple{std::string("gloo"), Kind::kAliased, 7},
                                         std::tuple{std::string("c10d"), Kind::kSlots, 1},
                                         std::tuple{std::string("c10d"), Kind::kSlots, 2},
                                         std::tuple{std::string("shm"), Kind::kSlots, 2},
                                         std::tuple{std::string("shm"), Kind::kSlots, 3},
                                         std::tuple{std::string("shm"), Kind::kAliased, 2},
                                         std::tuple{std::string("shm"), Kind::kAliased, 3},
                                         std::tuple{std::string("shm"), Kind::kAliased, 7},
                                         std::tuple{std::string("c10d"), Kind::kSlots, 3},
                                         std::tuple{std::string("c10d"), Kind::kSlots, 4},
                                         std::tuple{std::string("c10d"), Kind::kSlots, 7}),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) +
                                  (std::get<1>(tested.param) == Kind::kSlots ? "_slots_"
                                                                             : "_aliased_") +
                                  std::to_string(std::get<2>(tested.param));
                         });

TEST(AliasedStore, SaysThatTheTransportHasNoSharedMemory) {
  test::run_ranks("c10d", 2, [](const comm::Link& link) {
    std::vector<Unit> units;
    units.push_back(make_unit("only", 0, 3, link, at::kFloat));
    const auto store = engine::make_aliased_store(units);
    try {
      store->make_slices();
      ADD_FAILURE() << "c10d has no shared memory";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("c10d"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace fsdp
