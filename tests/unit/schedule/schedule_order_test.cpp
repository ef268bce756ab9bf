// SPDX-License-Identifier: Apache-2.0
/// Passes and their recorded order: where a pass begins, what a changed order costs, and what
/// interrupts a pass.
#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"
#include "schedule/schedule.hpp"
#include "unit/schedule/script.hpp"

namespace fsdp::schedule {
namespace {

using test::Script;
using ::testing::HasSubstr;

TEST(ScheduleOrderTest, Fault012_RecordedOrderIsAHint) {
  enum { kA, kB, kC };
  struct Step {
    std::vector<int> order;
    int forward_misses;
    int backward_misses;
  };
  // A touch misses when the recorded order has another unit in that place, or none. Backward CBA
  // after BCA was expected: C comes early, B late, A early.
  const std::vector<Step> steps = {{{kA, kB, kC}, 0, 0}, {{kA, kB, kC}, 0, 0}, {{kA, kB, kC}, 0, 0},
                                   {{kA, kC, kB}, 2, 3}, {{kA, kC}, 0, 1},     {{kA, kB, kC}, 2, 2},
                                   {{kA, kB, kC}, 0, 0}};
  for (int prefetch : {0, 1, 2}) {
    Script script({.units = 3, .prefetch = prefetch, .slots = 1 + prefetch});
    for (std::size_t i = 0; i < steps.size(); ++i) {
      SCOPED_TRACE("prefetch " + std::to_string(prefetch) + ", step " + std::to_string(i + 1));
      const std::vector<Script::Units> forward = Script::each(steps[i].order);
      const std::vector<Script::Units> backward(forward.rbegin(), forward.rend());
      std::int64_t before = script.misses();
      script.run(Pass::kForward, forward);
      EXPECT_EQ(script.misses() - before, steps[i].forward_misses);
      before = script.misses();
      script.run(Pass::kBackward, backward);
      EXPECT_EQ(script.misses() - before, steps[i].backward_misses);
      script.end_backward();
      EXPECT_EQ(script.live(), 0);
    }
  }
}

TEST(ScheduleOrderTest, AMissCostsAGatherAndThePrefetchGoesOnFromThere) {
  Script script({.units = 4, .prefetch = 1, .slots = 2});
  script.step({0, 1, 2, 3});
  EXPECT_EQ(script.forward({0}), "start 0@0, start 1@1, wait 0@0");
  EXPECT_EQ(script.end({0}), "free 0@0");
  EXPECT_EQ(script.forward({2}), "wait 1@1, free 1@1, start 2@0, start 3@1, wait 2@0");
  EXPECT_EQ(script.misses(), 1);
  EXPECT_EQ(script.end({2}), "") << "it stays for backward";
  EXPECT_EQ(script.forward({3}), "wait 3@1");
  EXPECT_EQ(script.misses(), 1);
  script.end({3});
}

TEST(ScheduleOrderTest, AUnitThatWasNeverThereBeforeIsAMissWithoutPrefetch) {
  Script script({.units = 3, .prefetch = 1, .slots = 2});
  script.step({0, 1});
  script.forward({0});
  script.end({0});
  EXPECT_EQ(script.forward({2}), "free 0@0, wait 1@1, free 1@1, start 2@0, wait 2@0")
      << "0 had stayed for backward";
  EXPECT_EQ(script.end({2}), "") << "nothing says that this was the last touch";
  EXPECT_EQ(script.misses(), 1);
  EXPECT_EQ(script.forward({1}), "free 2@0, start 1@0, wait 1@0");
  EXPECT_EQ(script.misses(), 2);
  script.end({1});
}

TEST(ScheduleOrderTest, AUnitThatComesTwiceIsFoundInItsNextPlaceAndStaysForIt) {
  Script script({.units = 3, .prefetch = 1, .slots = 2});
  const std::vector<Script::Units> order = {{0}, {1}, {0}, {2}};
  std::string second;
  for (int pass = 0; pass < 2; ++pass) {
    second.clear();
    for (std::uint64_t i = 0; i < order.size(); ++i) {
      second += script.touch(order[i], Pass::kEvaluation, i) + "; ";
      second += script.end(order[i]) + "; ";
    }
    script.reshard();
  }
  EXPECT_EQ(second,
            "start 0@0, start 1@1, wait 0@0; ; "
            "wait 1@1; free 1@1; "
            "start 2@1; free 0@0; "
            "wait 2@1; free 2@1; ");
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleOrderTest, TheFirstEvaluationLeavesItsLastUnitUntilReshardAndLaterOnesFreeIt) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  EXPECT_EQ(script.run(Pass::kEvaluation, {{0}, {1}}), R"(evaluate 0: start 0@0, wait 0@0
evaluate 1: free 0@0, start 1@0, wait 1@0
)");
  EXPECT_EQ(script.live(), 1);
  EXPECT_EQ(script.reshard(), "free 1@0");
  for (int pass = 2; pass <= 3; ++pass) {
    EXPECT_EQ(script.run(Pass::kEvaluation, {{0}, {1}}),
              R"(evaluate 0: start 0@0, start 1@1, wait 0@0
end 0: free 0@0
evaluate 1: wait 1@1
end 1: free 1@1
)");
    EXPECT_EQ(script.live(), 0);
  }
  EXPECT_EQ(script.reshard(), "");
}

TEST(ScheduleOrderTest, ANewPassBeginsWhenTheFirstSignatureComesAgain) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.run(Pass::kEvaluation, {{0}, {1}});
  EXPECT_EQ(script.evaluate({0}), "start 0@1, wait 0@1")
      << "the second pass knows that 1 comes after 0 and keeps it";
  EXPECT_EQ(script.misses(), 0);
  script.end({0});
}

TEST(ScheduleOrderTest, AnotherOperatorOnTheFirstUnitDoesNotBeginAPass) {
  Script script({.units = 2, .prefetch = 0, .slots = 1});
  for (int pass = 0; pass < 2; ++pass) {
    for (std::uint64_t signature : {7, 8}) {
      script.touch({signature == 7 ? 0 : 1}, Pass::kEvaluation, signature);
      script.end({signature == 7 ? 0 : 1});
    }
    script.touch({0}, Pass::kEvaluation, 9);
    script.end({0});
  }
  script.touch({0}, Pass::kEvaluation, 7);
  script.end({0});
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleOrderTest, PassesOfAModelWithOneUnitAreToldApart) {
  Script script({.units = 1, .prefetch = 1, .slots = 2});
  const auto pass = [&] {
    std::string text;
    for (std::uint64_t signature : {1, 2, 3}) {
      text += script.touch({0}, Pass::kEvaluation, signature) + "; ";
      text += script.end({0}) + "; ";
    }
    return text;
  };
  pass();
  script.reshard();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pass(), "start 0@0, wait 0@0; ; ; ; ; free 0@0; ");
  }
}

TEST(ScheduleOrderTest, TrainingAndEvaluationHaveOrdersOfTheirOwn) {
  Script script({.units = 3, .prefetch = 1, .slots = 2});
  script.step({0, 1, 2});
  EXPECT_EQ(script.evaluate({0}), "start 0@0, wait 0@0") << "no evaluation is known yet";
  script.end({0});
  EXPECT_EQ(script.evaluate({2}), "free 0@0, start 2@0, wait 2@0");
  script.end({2});
  EXPECT_EQ(script.touch({0}, Pass::kForward, 50), "free 2@0, start 0@0, start 1@1, wait 0@0");
  script.end({0});
  script.run(Pass::kForward, {{1}, {2}});
  EXPECT_EQ(script.touch({0}, Pass::kEvaluation, 50), "free 1@1, start 0@1, wait 0@1")
      << "2 comes next in evaluation, where it would be 1 in training";
  script.end({0});
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleOrderTest, AnOperatorWithoutGradientInsideForwardDoesNotEndThePass) {
  Script script({.units = 3, .prefetch = 1, .slots = 2});
  for (int step = 0; step < 2; ++step) {
    script.run(Pass::kForward, {{0}});
    EXPECT_EQ(script.evaluate({1}),
              step == 0 ? "free 0@0, start 1@0, wait 1@0" : "start 2@0, wait 1@1");
    script.end({1});
    script.run(Pass::kForward, {{2}});
    script.run(Pass::kBackward, {{2}, {1}, {0}});
    script.end_backward();
  }
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleOrderTest, AKeptRootIsFreedAtTheEndOfAnEvaluationWhereverItWasUsed) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2}, std::vector<int>{1, 0, 2}, std::vector<int>{1, 2, 0}}) {
    Script script({.units = 3, .prefetch = 1, .slots = 2, .kept = {0}, .own_buffers = {0}});
    script.run(Pass::kEvaluation, Script::each(order));
    script.reshard();
    script.run(Pass::kEvaluation, Script::each(order));
    EXPECT_EQ(script.live(), 0);
  }
}

TEST(ScheduleOrderTest, AForwardWithoutBackwardIsFollowedByAnother) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.run(Pass::kForward, {{0}, {1}});
  EXPECT_EQ(script.run(Pass::kForward, {{0}, {1}}), R"(forward 0: start 0@1, wait 0@1
end 0: free 0@1
)");
}

TEST(ScheduleOrderTest, OperatorsOfTwoThreadsKeepWhatTheyUse) {
  Script script({.units = 3, .prefetch = 0, .slots = 2});
  script.touch({0}, Pass::kEvaluation, 0);
  EXPECT_EQ(script.touch({1}, Pass::kEvaluation, 1), "start 1@1, wait 1@1");
  EXPECT_EQ(script.touch({2}, Pass::kEvaluation, 2), "refused");
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.touch({2}, Pass::kEvaluation, 2), "free 0@0, start 2@0, wait 2@0");
  EXPECT_EQ(script.reshard(), "") << "both are in use";
  EXPECT_EQ(script.invalidate(1), "");
  script.end({1});
  script.end({2});
  EXPECT_EQ(script.reshard(), "free 1@1, free 2@0");
}

TEST(ScheduleOrderTest, ReshardInTheMiddleOfBackwardDoesNotEndIt) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.step({0, 1});
  script.run(Pass::kForward, {{0}, {1}});
  script.backward({1});
  script.end({1});
  EXPECT_EQ(script.reshard(), "free 0@0");
  EXPECT_TRUE(script.schedule().in_backward());
  EXPECT_EQ(script.backward({0}), "start 0@0, wait 0@0");
  EXPECT_EQ(script.misses(), 0);
  EXPECT_EQ(script.end({0}), "free 0@0");
  script.end_backward();
}

TEST(ScheduleOrderTest, AnInvalidatedUnitIsGatheredAgain) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.evaluate({0});
  EXPECT_EQ(script.invalidate(1), "") << "there is nothing to free";
  script.end({0});
  EXPECT_EQ(script.invalidate(0), "free 0@0");
  EXPECT_EQ(script.evaluate({0}), "start 0@0, wait 0@0");
  script.end({0});
}

TEST(ScheduleOrderTest, AHeldUnitNeedsNeitherGatherNorSlot) {
  Script script({.units = 3, .prefetch = 0, .slots = 1});
  script.evaluate({0});
  script.end({0});
  EXPECT_EQ(script.hold(0), "free 0@0");
  EXPECT_EQ(script.hold(1), "");
  EXPECT_TRUE(script.schedule().is_unsharded(1));
  EXPECT_EQ(script.evaluate({0, 1, 2}), "start 2@0, wait 2@0");
  EXPECT_EQ(script.end({0, 1, 2}), "");
  EXPECT_EQ(script.invalidate(0), "");
  script.checked().unhold(0);
  script.checked().unhold(1);
  EXPECT_FALSE(script.schedule().is_unsharded(0));
  EXPECT_EQ(script.reshard(), "free 2@0");
  EXPECT_EQ(script.evaluate({0}), "start 0@0, wait 0@0");
  script.end({0});
}

TEST(ScheduleOrderTest, HoldingAUnitInUseAndUnpairedCallsAreErrors) {
  Schedule schedule({.units = 2});
  const std::vector<int> unit = {1};
  schedule.touch(unit, Pass::kForward, 0);
  try {
    schedule.hold(1);
    FAIL() << "unit 1 is in use";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.text(), HasSubstr("unit 1 is in use"));
  }
  schedule.release(unit);
  EXPECT_THROW(schedule.release(unit), Error);
  EXPECT_THROW(schedule.unhold(1), Error);
}

}  // namespace
}  // namespace fsdp::schedule
