// SPDX-License-Identifier: Apache-2.0
/// Names with Fault115 to Fault119 are the entries of docs/reference/faults.md.
#include "fsdp/data/sampler.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "fsdp/base/error.hpp"

namespace fsdp::data {
namespace {

std::vector<std::int64_t> samples(const Sampler& sampler, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> windows;
  for (std::int64_t i = begin; i < end; ++i) {
    windows.push_back(sampler.window(i));
  }
  return windows;
}

/// What all ranks together see in one step, in the order of global samples.
std::vector<std::int64_t> global_batch(const Sampler& sampler, std::int64_t step,
                                       std::int64_t global, int ranks, std::int64_t batch) {
  std::vector<std::int64_t> all;
  for (std::int64_t micro = 0; micro < global / (ranks * batch); ++micro) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = sampler.micro_batch(step * global, micro, {rank, ranks}, batch);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

TEST(WindowsTest, TileTheRangeAndEndWithIt) {
  const Windows even({100, 100 + 3 * 8 + 1}, 8);
  EXPECT_EQ(even.count(), 3);
  EXPECT_EQ(even.begin(2), 116);
  const Windows odd({0, 3 * 8 + 2}, 8);
  EXPECT_EQ(odd.count(), 4);
  EXPECT_EQ(odd.begin(3), 17);  // 17 .. 24 with targets to 25, the last token
  const Windows one({5, 5 + 9}, 8);
  EXPECT_EQ(one.count(), 1);
  EXPECT_EQ(one.begin(0), 5);
  EXPECT_THROW(Windows({0, 8}, 8), Error);
}

TEST(SamplerTest, EveryEpochIsAPermutation) {
  for (const std::int64_t windows : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4099}) {
    const Sampler sampler(windows, 7);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto seen = samples(sampler, epoch * windows, (epoch + 1) * windows);
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(),
                static_cast<std::size_t>(windows));
    }
  }
}

TEST(SamplerTest, SeedsGiveDifferentOrders) {
  EXPECT_NE(samples(Sampler(1000, 1), 0, 100), samples(Sampler(1000, 2), 0, 100));
  EXPECT_EQ(samples(Sampler(1000, 1), 0, 100), samples(Sampler(1000, 1), 0, 100));
}

TEST(SamplerTest, LooksRandom) {
  // Of a random permutation the mean distance of neighbours is a third of its length, and one
  // number in all stays in place on average.
  constexpr std::int64_t kWindows = 10000;
  double distance = 0;
  int in_place = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto order = samples(Sampler(kWindows, seed), 0, kWindows);
    for (std::size_t i = 0; i < order.size(); ++i) {
      in_place += order[i] == static_cast<std::int64_t>(i);
      distance += i == 0 ? 0.0 : std::abs(static_cast<double>(order[i] - order[i - 1]));
    }
  }
  EXPECT_NEAR(distance / (10.0 * kWindows), kWindows / 3.0, kWindows * 0.01);
  EXPECT_LT(in_place, 30);
}

TEST(SamplerTest, TheGlobalBatchDoesNotDependOnTheNumberOfRanks) {
  const Sampler sampler(1000, 3);
  const auto one = global_batch(sampler, 5, 24, 1, 24);
  for (const auto& [ranks, batch] : {std::pair{1, 3}, {2, 12}, {2, 3}, {3, 4}, {4, 6}, {8, 1}}) {
    EXPECT_EQ(global_batch(sampler, 5, 24, ranks, batch), one) << ranks << " ranks of " << batch;
  }
}

TEST(SamplerTest, Fault115_EachEpochHasAnotherOrder) {
  const Sampler sampler(8, 0);
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t step = epoch * 2; step < epoch * 2 + 2; ++step) {
      const auto batch = global_batch(sampler, step, 4, 2, 2);
      order.insert(order.end(), batch.begin(), batch.end());
    }
    EXPECT_THAT(order, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(SamplerTest, Fault116_TheTailIsSeen) {
  // 10 windows in global batches of 4: the epoch's last two open a batch that the next completes.
  const Sampler sampler(10, 0);
  std::vector<std::int64_t> stream;
  for (std::int64_t step = 0; step < 250; ++step) {
    const auto batch = global_batch(sampler, step, 4, 4, 1);
    stream.insert(stream.end(), batch.begin(), batch.end());
  }
  for (auto epoch = stream.begin(); epoch != stream.end(); epoch += 10) {
    EXPECT_EQ(std::set<std::int64_t>(epoch, epoch + 10).size(), 10u);
  }
}

TEST(SamplerTest, Fault117_ResumingTwiceInAnEpochContinuesTheSequence) {
  const auto uninterrupted = samples(Sampler(100, 9), 0, 100);
  std::vector<std::int64_t> sequence;
  SamplerState state = Sampler(100, 9).state(0);
  for (const std::int64_t stop : {30, 40, 55, 100}) {
    const Sampler sampler(100, 9);
    const std::int64_t begin = sampler.resume(state);
    const auto part = samples(sampler, begin, stop);
    sequence.insert(sequence.end(), part.begin(), part.end());
    state = sampler.state(stop);
  }
  EXPECT_EQ(sequence, uninterrupted);
}

TEST(SamplerTest, Fault161_APositionThatIsNoneIsRefused) {
  const Sampler sampler(1000, 4);
  for (const std::int64_t position : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
                                      std::numeric_limits<std::int64_t>::min()}) {
    try {
      sampler.resume({.seed = 4, .windows = 1000, .next_sample = position});
      ADD_FAILURE() << position;
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), ::testing::HasSubstr("the saved position in the data is " +
                                                     std::to_string(position)));
    }
  }
}

TEST(SamplerTest, Fault118_APositionHoldsForAnyNumberOfRanksAndNoOtherStream) {
  const Sampler saved(1000, 4);
  const SamplerState state = saved.state(5 * 12);
  const auto expected = samples(saved, 60, 72);
  for (const int ranks : {3, 6}) {
    const Sampler loaded(1000, 4);
    EXPECT_EQ(loaded.resume(state), 60);
    EXPECT_EQ(global_batch(loaded, 5, 12, ranks, 12 / ranks), expected);
  }
  EXPECT_THROW(Sampler(1000, 5).resume(state), Error);
  EXPECT_THROW(Sampler(999, 4).resume(state), Error);
}

TEST(SamplerTest, Fault119_RanksSeeDistinctWindows) {
  const Sampler sampler(16, 0);
  const auto first = global_batch(sampler, 0, 16, 4, 4);
  EXPECT_EQ(std::set<std::int64_t>(first.begin(), first.end()).size(), 16u);
}

}  // namespace
}  // namespace fsdp::data
