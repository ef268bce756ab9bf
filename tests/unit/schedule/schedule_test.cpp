// SPDX-License-Identifier: Apache-2.0
/// Weights: what a training step gathers and frees, action by action.
#include "schedule/schedule.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "unit/schedule/script.hpp"

namespace fsdp::schedule {
namespace {

using test::Script;

Config chain(int units, int prefetch) {
  return {.units = units, .prefetch = prefetch, .slots = 1 + prefetch};
}

TEST(ScheduleTest, OneUnitIsGatheredOnceAStep) {
  Script script(chain(1, 1));
  const std::string first = script.step({0});
  EXPECT_EQ(first, R"(
forward 0: start 0@0, wait 0@0
gradients 0: open 0@0, reduce 0@0
end of backward: done 0@0, free 0@0
)");
  EXPECT_EQ(script.step({0}), R"(
forward 0: start 0@0, wait 0@0
end 0: free 0@0
gradients 0: open 0@0, reduce 0@0
end of backward: done 0@0
)");
}

TEST(ScheduleTest, TwoUnitsFirstAndSecondStep) {
  Script script(chain(2, 1));
  EXPECT_EQ(script.step({0, 1}), R"(
forward 0: start 0@0, wait 0@0
forward 1: free 0@0, start 1@0, wait 1@0
gradients 1: open 1@0, reduce 1@0
backward 0: free 1@0, start 0@0, wait 0@0
gradients 0: open 0@1, done 1@0, reduce 0@1
end of backward: done 0@1, free 0@0
)");
  EXPECT_EQ(script.step({0, 1}), R"(
forward 0: start 0@0, start 1@1, wait 0@0
forward 1: wait 1@1
end 1: free 1@1
gradients 1: open 1@0, reduce 1@0
end 0: free 0@0
gradients 0: open 0@1, done 1@0, reduce 0@1
end of backward: done 0@1
)");
}

TEST(ScheduleTest, TheFirstStepOfThreeUnitsGathersOnDemand) {
  for (int prefetch : {0, 1, 2}) {
    Script script(chain(3, prefetch));
    EXPECT_EQ(script.step({0, 1, 2}), R"(
forward 0: start 0@0, wait 0@0
forward 1: free 0@0, start 1@0, wait 1@0
forward 2: free 1@0, start 2@0, wait 2@0
gradients 2: open 2@0, reduce 2@0
backward 1: free 2@0, start 1@0, wait 1@0
gradients 1: open 1@1, done 2@0, reduce 1@1
backward 0: free 1@0, start 0@0, wait 0@0
gradients 0: open 0@0, done 1@1, reduce 0@0
end of backward: done 0@0, free 0@0
)") << "prefetch "
    << prefetch;
  }
}

TEST(ScheduleTest, Fault092_PrefetchDepthChangesTheOrder) {
  Script on_demand(chain(3, 0));
  on_demand.step({0, 1, 2});
  EXPECT_EQ(on_demand.step({0, 1, 2}), R"(
forward 0: start 0@0, wait 0@0
end 0: free 0@0
forward 1: start 1@0, wait 1@0
end 1: free 1@0
forward 2: start 2@0, wait 2@0
end 2: free 2@0
gradients 2: open 2@0, reduce 2@0
backward 1: start 1@0, wait 1@0
end 1: free 1@0
gradients 1: open 1@1, done 2@0, reduce 1@1
backward 0: start 0@0, wait 0@0
end 0: free 0@0
gradients 0: open 0@0, done 1@1, reduce 0@0
end of backward: done 0@0
)");
  Script one_ahead(chain(3, 1));
  one_ahead.step({0, 1, 2});
  EXPECT_EQ(one_ahead.step({0, 1, 2}), R"(
forward 0: start 0@0, start 1@1, wait 0@0
end 0: free 0@0
forward 1: start 2@0, wait 1@1
forward 2: wait 2@0
end 2: free 2@0
gradients 2: open 2@0, reduce 2@0
backward 1: start 0@0
end 1: free 1@1
gradients 1: open 1@1, done 2@0, reduce 1@1
backward 0: wait 0@0
end 0: free 0@0
gradients 0: open 0@0, done 1@1, reduce 0@0
end of backward: done 0@0
)");
  Script two_ahead(chain(3, 2));
  two_ahead.step({0, 1, 2});
  EXPECT_EQ(two_ahead.step({0, 1, 2}), R"(
forward 0: start 0@0, start 1@1, start 2@2, wait 0@0
forward 1: wait 1@1
forward 2: wait 2@2
end 2: free 2@2
gradients 2: open 2@0, reduce 2@0
end 1: free 1@1
gradients 1: open 1@1, done 2@0, reduce 1@1
end 0: free 0@0
gradients 0: open 0@0, done 1@1, reduce 0@0
end of backward: done 0@0
)");
}

/// "forward u" of a chain in the second step, by rule: the first operator starts its own gather and
/// `prefetch` more, each later one the gather that comes into the window, then it waits for its
/// own. Backward finds its first 1 + `prefetch` units where forward left them.
std::vector<Action> expected_touch(int place, int units, int prefetch, bool turned) {
  std::vector<Action> actions;
  const auto unit_at = [&](int i) { return turned ? units - 1 - i : i; };
  const int left = turned ? 1 + prefetch : 0;
  const int begin = std::max(left, place == 0 ? 0 : place + prefetch);
  for (int next = begin; next <= std::min(place + prefetch, units - 1); ++next) {
    actions.push_back({ActionKind::kStartGather, unit_at(next)});
  }
  if (place >= left) {
    actions.push_back({ActionKind::kWaitGather, unit_at(place)});
  }
  return actions;
}

TEST(ScheduleTest, EightUnitsFollowTheWindowRuleInBothDirections) {
  constexpr int kUnits = 8;
  std::vector<int> order(kUnits);
  std::iota(order.begin(), order.end(), 0);
  for (int prefetch : {0, 1, 2}) {
    Script script(chain(kUnits, prefetch));
    script.step(order);
    for (int step = 2; step <= 3; ++step) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const bool turned = pass == Pass::kBackward;
        for (int place = 0; place < kUnits; ++place) {
          SCOPED_TRACE("prefetch " + std::to_string(prefetch) + " place " + std::to_string(place));
          const int unit = turned ? kUnits - 1 - place : place;
          script.touch({unit}, pass);
          std::vector<Action> actions = script.checked().actions();
          for (Action& action : actions) {
            action.slot = -1;
          }
          EXPECT_EQ(actions, expected_touch(place, kUnits, prefetch, turned));
          const std::string freed = script.end({unit});
          const bool stays = !turned && place >= kUnits - 1 - prefetch;
          EXPECT_EQ(freed.substr(0, 6), stays ? "" : "free " + std::to_string(unit));
        }
      }
      script.end_backward();
    }
    EXPECT_EQ(script.misses(), 0);
  }
}

TEST(ScheduleTest, UnitsAtTheTurnFromForwardToBackwardAreNotGatheredAgain) {
  for (int prefetch : {0, 1, 2}) {
    for (int units : {1, 2, 3, 8}) {
      std::vector<int> order(static_cast<std::size_t>(units));
      std::iota(order.begin(), order.end(), 0);
      Script script(chain(units, prefetch));
      const int again = std::min(prefetch, units - 1);  // by the first step, which predicts nothing
      for (int step = 1; step <= 3; ++step) {
        script.step(order);
        EXPECT_EQ(script.checked().gathers(), step * (2 * units - 1 - again) + again)
            << units << " units";
      }
    }
  }
}

TEST(ScheduleTest, Fault091_PrefetchIsBounded) {
  std::vector<int> order(10);
  std::iota(order.begin(), order.end(), 0);
  for (int prefetch : {0, 1, 2, 3}) {
    // Slots in plenty do not make it run further ahead.
    for (int slots : {1 + prefetch, 10}) {
      Script script({.units = 10, .prefetch = prefetch, .slots = slots});
      for (int step = 0; step < 3; ++step) {
        script.step(order);
        EXPECT_EQ(script.live(), 0);
      }
      EXPECT_EQ(script.schedule().peak_live(), 1 + prefetch);
    }
  }
}

}  // namespace
}  // namespace fsdp::schedule
