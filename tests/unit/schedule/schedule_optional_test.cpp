// SPDX-License-Identifier: Apache-2.0
/// Optional units: ranks that touch them unequally often issue the same collectives.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.hpp"
#include "support/checked_schedule.hpp"

namespace fsdp::schedule {
namespace {

using Runs = std::vector<std::vector<int>>;

constexpr int kUnits = 5;

bool is_optional(int unit) { return unit == 1 || unit == 3 || unit == 4; }

/// One rank's schedule, and the collectives that it asked for.
struct Rank {
  explicit Rank(int prefetch, bool knows = true)
      : schedule({.units = kUnits, .prefetch = prefetch, .slots = 1 + prefetch}) {
    for (int unit = 0; unit < kUnits && knows; ++unit) {
      if (is_optional(unit)) {
        schedule.set_optional(unit);
      }
    }
  }
  void note(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kStartGather || action.kind == ActionKind::kStartReduce) {
        collectives += test::to_string({action}) + "; ";
      }
    }
  }
  void touch(int unit, Pass pass, int times) {
    for (int i = 0; i < times; ++i) {
      note(schedule.touch({&unit, 1}, pass, static_cast<std::uint64_t>(unit * 8 + i)));
      note(schedule.release({&unit, 1}));
    }
  }
  /// `times` touches of each optional unit, two of the others.
  void step(const std::vector<int>& order, int times) {
    for (int unit : order) {
      touch(unit, Pass::kForward, is_optional(unit) ? times : 2);
    }
    for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
      touch(*unit, Pass::kBackward, is_optional(*unit) ? times : 2);
      note(schedule.gradient(*unit));
      note(schedule.gradients_complete(*unit));
    }
    note(schedule.end_backward(true));
  }

  Schedule schedule;
  std::string collectives;
};

/// Whether two ranks that touch optional units unequally often, step by step, agree.
bool agree(int prefetch, unsigned seed, bool knows) {
  std::mt19937 random(seed);
  Rank one(prefetch, knows), other(prefetch, knows);
  for (int step = 0; step < 12; ++step) {
    std::vector<int> order;
    for (int unit = 0; unit < kUnits; ++unit) {
      if (random() % 4 != 0) {
        order.push_back(unit);
      }
    }
    one.step(order, 1 + static_cast<int>(random() % 4));
    other.step(order, 1 + static_cast<int>(random() % 4));
  }
  return one.collectives == other.collectives;
}

TEST(ScheduleOptionalTest, Fault001_UnequalTouchesOfOptionalUnitsChangeNoCollective) {
  int parted = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    for (const int prefetch : {0, 1, 2}) {
      EXPECT_TRUE(agree(prefetch, seed, /*knows=*/true)) << seed << ", prefetch " << prefetch;
      parted += agree(prefetch, seed, /*knows=*/false) ? 0 : 1;
    }
  }
  EXPECT_GT(parted, 100) << "the programs would not have parted anyway";
}

TEST(ScheduleOptionalTest, TheUpcomingRunIsThatOfTheRecordedOrder) {
  Rank rank(1);
  const std::vector<int> inside = {1, 3};
  EXPECT_EQ(rank.schedule.upcoming_run(inside, Pass::kForward), Runs());
  // Unit 3 lies inside of unit 1; 4 comes again.
  for (int unit : {0, 1, 3, 1, 2, 4, 2, 4}) {
    rank.touch(unit, Pass::kForward, 2);
  }
  rank.touch(4, Pass::kBackward, 1);
  rank.note(rank.schedule.end_backward(true));
  EXPECT_EQ(rank.schedule.upcoming_run(inside, Pass::kForward), (Runs{{1}, {3}, {1}}));
  EXPECT_EQ(rank.schedule.upcoming_run(inside, Pass::kEvaluation), Runs());
  EXPECT_EQ(rank.schedule.upcoming_run(std::vector<int>{4}, Pass::kForward), (Runs{{4}}));
  EXPECT_EQ(rank.schedule.upcoming_run(std::vector<int>{0, 4}, Pass::kForward), Runs());
  for (int unit : {0, 1, 3, 1, 2, 4}) {
    rank.touch(unit, Pass::kForward, 2);
    EXPECT_TRUE(rank.schedule.is_current(unit));
    EXPECT_FALSE(rank.schedule.is_current((unit + 1) % kUnits));
  }
  EXPECT_EQ(rank.schedule.upcoming_run(std::vector<int>{2, 4}, Pass::kForward), (Runs{{2}, {4}}));
}

}  // namespace
}  // namespace fsdp::schedule
