// SPDX-License-Identifier: Apache-2.0
#include "schedule/virtual_clock.hpp"

#include <gmock/gmock.h>

#include <algorithm>

namespace fsdp::schedule {
namespace {

constexpr int kUnits = 8;
const UnitCost kCovered{.forward = 2, .backward = 4, .gather = 1, .reduce = 1};

Config chain(int units, int prefetch) {
  return {.units = units, .prefetch = prefetch, .slots = 1 + prefetch};
}

std::vector<StepTimes> run(int prefetch, const UnitCost& cost, int steps = 3) {
  return run_chain(chain(kUnits, prefetch), std::vector<UnitCost>(kUnits, cost), steps);
}

TEST(VirtualClockTest, ComputeThatCoversItsGatherHidesAllButTheFirstAndTheLastCollective) {
  for (int prefetch : {1, 2, 3}) {
    const StepTimes second = run(prefetch, kCovered)[1];
    EXPECT_EQ(second.compute, kUnits * (kCovered.forward + kCovered.backward));
    EXPECT_EQ(second.exposed_gather, kCovered.gather);
    EXPECT_EQ(second.exposed_reduce, kCovered.reduce);
    EXPECT_LE(second.total, 1.10 * second.compute + kCovered.gather + kCovered.reduce);
  }
}

TEST(VirtualClockTest, WithoutPrefetchEveryGatherIsExposed) {
  for (const StepTimes& step : run(0, kCovered)) {
    EXPECT_EQ(step.gathers, 2 * kUnits - 1);
    EXPECT_EQ(step.exposed_gather, static_cast<double>(step.gathers) * kCovered.gather);
    EXPECT_EQ(step.peak_live, 1);
  }
}

TEST(VirtualClockTest, TheFirstStepKnowsNothingAheadWhateverThePrefetch) {
  for (int prefetch : {0, 1, 2}) {
    const StepTimes first = run(prefetch, kCovered)[0];
    EXPECT_EQ(first.exposed_gather, static_cast<double>(first.gathers) * kCovered.gather);
  }
}

TEST(VirtualClockTest, CollectivesAreCountedExactlyInEveryStep) {
  for (int prefetch : {0, 1, 2}) {
    for (int units : {1, 2, 5}) {
      const auto times =
          run_chain(chain(units, prefetch),
                    std::vector<UnitCost>(static_cast<std::size_t>(units), kCovered), 3);
      ASSERT_EQ(times.size(), 3U);
      for (std::size_t step = 0; step < times.size(); ++step) {
        const int known = step == 0 ? 0 : std::min(prefetch, units - 1);
        EXPECT_EQ(times[step].gathers, 2 * units - 1 - known);
        EXPECT_EQ(times[step].reduces, units);
      }
      EXPECT_EQ(times.back().peak_live, std::min(units, 1 + prefetch));
    }
  }
}

TEST(VirtualClockTest, AStepIsItsComputePlusWhatIsExposed) {
  std::vector<UnitCost> costs;
  for (int unit = 0; unit < kUnits; ++unit) {
    costs.push_back({.forward = 1.0 + unit % 3,
                     .backward = 2.0 + unit % 4,
                     .gather = 0.5 * (unit % 5),
                     .reduce = 0.75 * (unit % 7)});
  }
  for (int prefetch : {0, 1, 2}) {
    for (const StepTimes& step : run_chain(chain(kUnits, prefetch), costs, 4)) {
      EXPECT_NEAR(step.compute + step.exposed_gather + step.exposed_reduce, step.total, 1e-9);
    }
  }
}

TEST(VirtualClockTest, TheSecondStepIsTheSteadyState) {
  const auto times = run(1, kCovered, 4);
  for (std::size_t step = 2; step < times.size(); ++step) {
    EXPECT_EQ(times[step].total, times[1].total);
  }
  EXPECT_LT(times[1].total, times[0].total);
}

TEST(VirtualClockTest, ASlowGatherIsHiddenUpToItsComputation) {
  const UnitCost cost{.forward = 2, .backward = 2, .gather = 3, .reduce = 0};
  const StepTimes second = run(1, cost)[1];
  // Forward waits for the whole first gather, then for one unit of time before each other unit;
  // backward starts with two units at hand.
  EXPECT_EQ(second.exposed_gather, 3 + (kUnits - 1) * 1 + (kUnits - 2) * 1);
}

TEST(VirtualClockTest, ASlowReductionIsExposedWhereTheNextOneStarts) {
  const UnitCost cost{.forward = 1, .backward = 2, .gather = 0, .reduce = 5};
  const StepTimes second = run(1, cost)[1];
  EXPECT_EQ(second.exposed_reduce, (kUnits - 1) * (5 - 2) + 5);
}

TEST(VirtualClockTest, NoStepsTakeNoTime) { EXPECT_TRUE(run(1, kCovered, 0).empty()); }

}  // namespace
}  // namespace fsdp::schedule
