// SPDX-License-Identifier: Apache-2.0
/// Gradients: reduce buffers, the end of backward, and backward passes that die.
#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"
#include "schedule/schedule.hpp"
#include "unit/schedule/script.hpp"

namespace fsdp::schedule {
namespace {

using test::Script;

TEST(ScheduleGradientsTest, AReductionIsWaitedForWhenTheNextOneStarts) {
  Script script({.units = 3});
  EXPECT_EQ(script.gradient(2), "open 2@0");
  EXPECT_EQ(script.gradient(2), "");
  EXPECT_EQ(script.complete(2), "reduce 2@0");
  EXPECT_EQ(script.gradient(1), "open 1@1");
  EXPECT_EQ(script.complete(1), "done 2@0, reduce 1@1");
  EXPECT_EQ(script.gradient(0), "open 0@0");
  EXPECT_EQ(script.complete(0), "done 1@1, reduce 0@0");
  EXPECT_EQ(script.end_backward(), "done 0@0");
}

TEST(ScheduleGradientsTest, OneBufferIsEnough) {
  Script script({.units = 2, .reduce_buffers = 1});
  script.gradient(1);
  EXPECT_EQ(script.complete(1), "reduce 1@0");
  EXPECT_EQ(script.gradient(0), "done 1@0, open 0@0");
  EXPECT_EQ(script.complete(0), "reduce 0@0");
  EXPECT_EQ(script.end_backward(), "done 0@0");
}

TEST(ScheduleGradientsTest, CompletenessWithoutAGradientDoesNothing) {
  Script script({.units = 1});
  EXPECT_EQ(script.complete(0), "");
  script.gradient(0);
  script.complete(0);
  EXPECT_EQ(script.complete(0), "");
  script.end_backward();
}

TEST(ScheduleGradientsTest, TheRootCollectsInItsOwnBufferThroughoutBackward) {
  Script script({.units = 4, .own_buffers = {0}});
  EXPECT_EQ(script.gradient(0), "open 0@2");
  script.gradient(3);
  script.complete(3);
  script.gradient(2);
  EXPECT_EQ(script.complete(2), "done 3@0, reduce 2@1");
  EXPECT_EQ(script.gradient(1), "open 1@0");
  EXPECT_EQ(script.complete(1), "done 2@1, reduce 1@0");
  EXPECT_EQ(script.complete(0), "done 1@0, reduce 0@2");
  EXPECT_EQ(script.end_backward(), "done 0@2");

  Script alone({.units = 1});
  EXPECT_EQ(alone.gradient(0), "open 0@0") << "a root without other units uses the ring";
  alone.end_backward();
}

TEST(ScheduleGradientsTest, WhenBuffersRunOutTheOldestUnitIsReducedAsItIs) {
  Script script({.units = 4, .own_buffers = {0}});
  script.gradient(0);
  script.gradient(3);
  script.gradient(2);
  EXPECT_EQ(script.gradient(1), "reduce 3@0, done 3@0, open 1@0");
  EXPECT_EQ(script.gradient(3), "reduce 2@1, done 2@1, open 3@1") << "the rest is a second round";
  EXPECT_EQ(script.complete(3), "reduce 3@1");
  EXPECT_EQ(script.complete(1), "done 3@1, reduce 1@0");
  EXPECT_EQ(script.end_backward(), "done 1@0, reduce 0@2, done 0@2")
      << "2 was reduced, the root is still collecting";
}

TEST(ScheduleGradientsTest, ABufferInFlightIsPreferredToAPartialReduction) {
  Script script({.units = 3});
  script.gradient(2);
  script.gradient(1);
  script.complete(1);
  EXPECT_EQ(script.gradient(0), "done 1@1, open 0@1") << "2 goes on collecting";
  script.end_backward();
}

TEST(ScheduleGradientsTest, TheRootInFlightIsNoHelpWhenBuffersRunOut) {
  Script script({.units = 3, .reduce_buffers = 1, .own_buffers = {0}});
  script.gradient(0);
  script.complete(0);
  script.gradient(2);
  EXPECT_EQ(script.gradient(1), "done 0@1, reduce 2@0, done 2@0, open 1@0");
  script.end_backward();
}

TEST(ScheduleGradientsTest, ANestedBackwardOpensASecondRound) {
  Script script({.units = 2});
  script.gradient(1);
  script.complete(1);
  EXPECT_EQ(script.gradient(1), "done 1@0, open 1@0") << "still in flight: waited for first";
  EXPECT_EQ(script.complete(1), "reduce 1@0");
  script.gradient(0);
  script.complete(0);
  EXPECT_EQ(script.gradient(1), "open 1@0") << "1 was waited for when 0 started";
  EXPECT_EQ(script.end_backward(), "done 0@1, reduce 1@0, done 1@0");
}

TEST(ScheduleGradientsTest, TheEndOfBackwardReducesEveryUnitInUnitOrder) {
  Script script({.units = 4});
  script.gradient(2);
  EXPECT_EQ(script.end_backward(),
            "open 0@1, reduce 0@1, "
            "done 0@1, open 1@1, reduce 1@1, "
            "done 1@1, reduce 2@0, "
            "open 3@1, done 2@0, reduce 3@1, done 3@1");
}

/// The order in which units are reduced.
std::vector<int> reduced(const std::vector<Action>& actions) {
  std::vector<int> units;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kStartReduce) {
      units.push_back(action.unit);
    }
  }
  return units;
}

TEST(ScheduleGradientsTest, RanksThatUsedDifferentUnitsAgreeOnTheReductions) {
  const std::vector<int> all = {0, 1, 2, 3};
  for (const std::vector<int>& collecting :
       std::vector<std::vector<int>>{{}, {0}, {3}, {2}, {0, 3}}) {
    Script script({.units = 4, .own_buffers = {0}});
    for (int unit : collecting) {
      script.gradient(unit);
    }
    script.end_backward();
    EXPECT_EQ(reduced(script.checked().actions()), all);
  }
}

TEST(ScheduleGradientsTest, WhatOneBackwardReducedSaysNothingAboutTheNext) {
  Script script({.units = 2});
  // Backward may take no weights at all: the first layer's input needs no gradient.
  for (int unit : {0, 1}) {
    script.gradient(unit);
    script.complete(unit);
  }
  script.end_backward();
  script.gradient(0);
  script.complete(0);
  script.end_backward();
  EXPECT_EQ(reduced(script.checked().actions()), std::vector<int>{1});
}

TEST(ScheduleGradientsTest, AForwardDuringBackwardDoesNotRepeatReductions) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.run(Pass::kForward, {{0}, {1}});
  script.run(Pass::kBackward, {{1}});
  script.run(Pass::kEvaluation, {{1}});
  script.run(Pass::kBackward, {{0}});
  EXPECT_EQ(script.end_backward(), "done 0@1, free 0@0");
}

TEST(ScheduleGradientsTest, FrozenUnitsAreNotFlushed) {
  Script script({.units = 3});
  script.checked().set_trainable(1, false);
  script.end_backward();
  EXPECT_EQ(reduced(script.checked().actions()), (std::vector<int>{0, 2}));
  script.checked().set_trainable(1, true);
  script.end_backward();
  EXPECT_EQ(reduced(script.checked().actions()), (std::vector<int>{0, 1, 2}));
}

TEST(ScheduleGradientsTest, WithoutFlushNothingIsReducedAndCollectingGoesOn) {
  Script script({.units = 2, .prefetch = 0, .slots = 1});
  script.run(Pass::kForward, {{0}});
  script.backward({0});
  script.end({0});
  script.gradient(0);
  EXPECT_EQ(script.end_backward(false), "free 0@0");
  EXPECT_TRUE(script.schedule().is_collecting(0));
  EXPECT_EQ(script.gradient(0), "");
  EXPECT_EQ(script.end_backward(), "reduce 0@0, open 1@1, done 0@0, reduce 1@1, done 1@1");
}

TEST(ScheduleGradientsTest, ABackwardThatTakesNoWeightsEndsTheForwardPass) {
  Script script({.units = 2, .prefetch = 1, .slots = 2});
  script.run(Pass::kForward, {{0}, {1}});
  script.gradient(0);
  EXPECT_EQ(script.end_backward(),
            "reduce 0@0, open 1@1, done 0@0, reduce 1@1, done 1@1, free 1@0");
  EXPECT_EQ(script.touch({0}, Pass::kForward, 50), "start 0@0, start 1@1, wait 0@0")
      << "whatever operator comes first";
  script.end({0});
}

TEST(ScheduleGradientsTest, AnAbortedBackwardLeavesACleanState) {
  Script script({.units = 4, .prefetch = 1, .slots = 2, .own_buffers = {0}});
  const std::string steady = [&] {
    script.step({0, 1, 2, 3});
    return script.step({0, 1, 2, 3});
  }();
  script.run(Pass::kForward, Script::each({0, 1, 2, 3}));
  script.gradient(0);
  script.run(Pass::kBackward, {{3}});
  script.backward({2});
  script.gradient(2);
  EXPECT_EQ(script.abort(), "done 3@0, wait 1@1, free 1@1") << "2 was in use when backward died";
  EXPECT_EQ(script.end({2}), "");
  EXPECT_FALSE(script.schedule().in_backward());
  EXPECT_EQ(script.reshard(), "free 2@0");
  EXPECT_EQ(script.step({0, 1, 2, 3}), steady) << "the broken pass was not recorded";
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleGradientsTest, AnAbortedBackwardDoesNotCountAsReduced) {
  Script script({.units = 2});
  for (int unit : {0, 1}) {
    script.gradient(unit);
    script.complete(unit);
  }
  script.abort();
  script.end_backward();
  EXPECT_EQ(reduced(script.checked().actions()), (std::vector<int>{0, 1}));
}

TEST(ScheduleGradientsTest, AUnitWhoseGradientsComeAllThroughBackwardHasABufferOfItsOwn) {
  Script script({.units = 4, .reduce_buffers = 1, .own_buffers = {3}});
  EXPECT_EQ(script.gradient(3), "open 3@1");
  EXPECT_EQ(script.gradient(2), "open 2@0");
  EXPECT_EQ(script.complete(2), "reduce 2@0");
  EXPECT_EQ(script.gradient(1), "done 2@0, open 1@0");
  EXPECT_EQ(script.complete(1), "reduce 1@0");
  EXPECT_EQ(script.complete(3), "done 1@0, reduce 3@1");
  EXPECT_EQ(script.end_backward(), "open 0@0, done 3@1, reduce 0@0, done 0@0");
}

TEST(ScheduleGradientsTest, AnOwnBufferOfAUnitThatIsNotThereIsRefused) {
  EXPECT_THROW(Schedule({.units = 2, .own_buffers = {2}}), Error);
  EXPECT_THROW(Schedule({.units = 2, .kept = {-1}}), Error);
}

}  // namespace
}  // namespace fsdp::schedule
