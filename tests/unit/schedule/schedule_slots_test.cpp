// SPDX-License-Identifier: Apache-2.0
/// Which units stay in the slots: until the last touch, for operators with several units, for the
/// root, and when slots are short.
#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"
#include "schedule/schedule.hpp"
#include "unit/schedule/script.hpp"

namespace fsdp::schedule {
namespace {

using test::Script;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ScheduleSlotsTest, AnIntervalEndsAtTheRecordedLastTouch) {
  Script script({.units = 2, .prefetch = 0, .slots = 1});
  for (int i = 0; i < 3; ++i) {
    script.evaluate({0});
    EXPECT_EQ(script.end({0}), "") << "the first pass cannot know which touch is the last";
  }
  script.evaluate({1});
  script.end({1});
  script.reshard();

  EXPECT_EQ(script.evaluate({0}), "start 0@0, wait 0@0");
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.evaluate({0}), "");
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.evaluate({0}), "");
  EXPECT_EQ(script.end({0}), "free 0@0");
  EXPECT_EQ(script.evaluate({0}), "start 0@0, wait 0@0") << "one touch more costs a gather";
  EXPECT_EQ(script.end({0}), "free 0@0");
  EXPECT_EQ(script.misses(), 0);
}

TEST(ScheduleSlotsTest, FewerTouchesThanRecordedFreeAtTheNextUnit) {
  Script script({.units = 2, .prefetch = 0, .slots = 1});
  for (int unit : {0, 0, 1}) {
    script.evaluate({unit});
    script.end({unit});
  }
  script.reshard();
  script.evaluate({0});
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.evaluate({1}), "free 0@0, start 1@0, wait 1@0");
  script.end({1});
}

TEST(ScheduleSlotsTest, NestedTouchesOfAUnitFreeItAtTheOuterEnd) {
  Script script({.units = 2, .prefetch = 0, .slots = 1});
  for (int pass = 0; pass < 2; ++pass) {
    script.evaluate({0});
    EXPECT_EQ(script.touch({0}, Pass::kEvaluation, 100), "");
    EXPECT_EQ(script.end({0}), "");
    EXPECT_EQ(script.end({0}), pass == 0 ? "" : "free 0@0");
    script.evaluate({1});
    script.end({1});
    script.reshard();
  }
}

TEST(ScheduleSlotsTest, AnOperatorWaitsForAllItsUnitsAndStartsThemBeforeThePrefetch) {
  Script script({.units = 4, .prefetch = 1, .slots = 3});
  const std::vector<Script::Units> order = {{0, 1}, {1, 2}, {3}};
  EXPECT_EQ(script.run(Pass::kForward, order),
            R"(forward 0 1: start 0@0, start 1@1, wait 0@0, wait 1@1
forward 1 2: free 0@0, start 2@0, wait 2@0
forward 3: free 1@1, free 2@0, start 3@0, wait 3@0
)");
  script.backward({3});
  script.end({3});
  script.end_backward();
  EXPECT_EQ(script.run(Pass::kForward, order),
            R"(forward 0 1: start 0@0, start 1@1, start 2@2, wait 0@0, wait 1@1
end 0 1: free 0@0
forward 1 2: start 3@0, wait 2@2
end 1 2: free 1@1, free 2@2
forward 3: wait 3@0
)");
  script.end_backward();
}

TEST(ScheduleSlotsTest, AUnitThatTwoOperatorsInARowShareStaysWithoutPrefetchToo) {
  Script script({.units = 4, .prefetch = 0, .slots = 2});
  script.run(Pass::kEvaluation, {{0, 1}, {1, 2}, {3}});
  script.reshard();
  EXPECT_EQ(script.run(Pass::kEvaluation, {{0, 1}, {1, 2}, {3}}),
            R"(evaluate 0 1: start 0@0, start 1@1, wait 0@0, wait 1@1
end 0 1: free 0@0
evaluate 1 2: start 2@0, wait 2@0
end 1 2: free 1@1, free 2@0
evaluate 3: start 3@0, wait 3@0
end 3: free 3@0
)");
}

TEST(ScheduleSlotsTest, AUnitThatComesAgainWithinTheWindowStays) {
  Script script({.units = 3, .prefetch = 2, .slots = 3});
  script.run(Pass::kEvaluation, {{0}, {1}});
  script.touch({0}, Pass::kEvaluation, 100);
  script.end({0});
  script.run(Pass::kEvaluation, {{2}});
  script.reshard();
  EXPECT_EQ(script.evaluate({0}), "start 0@0, start 1@1, start 2@2, wait 0@0");
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.evaluate({1}), "wait 1@1");
  EXPECT_EQ(script.end({1}), "free 1@1");
  EXPECT_EQ(script.touch({0}, Pass::kEvaluation, 100), "");
  EXPECT_EQ(script.end({0}), "free 0@0");
}

TEST(ScheduleSlotsTest, AUnitThatTheOperatorNeedsTakesThePlaceOfAPrefetchedOne) {
  Script script({.units = 5, .prefetch = 2, .slots = 3});
  // After {0} come 1 and 2, and so they do after {3, 4}: whoever comes too early finds them there.
  script.run(Pass::kEvaluation, {{0}, {1}, {2}, {3, 4}, {1}, {2}});
  script.reshard();
  EXPECT_EQ(script.evaluate({0}), "start 0@0, start 1@1, start 2@2, wait 0@0");
  script.end({0});
  EXPECT_EQ(script.evaluate({3, 4}),
            "start 3@0, wait 2@2, free 2@2, start 4@2, wait 3@0, wait 4@2");
  EXPECT_EQ(script.end({3, 4}), "free 3@0, free 4@2");
  EXPECT_EQ(script.evaluate({1}), "start 2@0, wait 1@1");
  script.end({1});
}

TEST(ScheduleSlotsTest, TooFewSlotsAreRefusedAndNothingChanges) {
  Script script({.units = 3, .prefetch = 1, .slots = 2});
  script.forward({0});
  EXPECT_EQ(script.touch({1, 2}, Pass::kForward), "refused") << "0 is still in use";
  EXPECT_EQ(script.touch({0, 1, 2}, Pass::kBackward), "refused");
  EXPECT_FALSE(script.schedule().in_backward());
  EXPECT_EQ(script.live(), 1);
  EXPECT_EQ(script.end({0}), "");
  EXPECT_EQ(script.forward({1, 2}), "free 0@0, start 1@0, start 2@1, wait 1@0, wait 2@1");
  script.end({1, 2});

  Schedule schedule({.units = 3, .prefetch = 1, .slots = 2});
  try {
    schedule.touch(std::vector<int>{0, 1, 2}, Pass::kForward, 0);
    FAIL() << "three units do not fit into two slots";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("needs 3 units"), HasSubstr("2 gather slots")));
  }
}

TEST(ScheduleSlotsTest, TheRootIsGatheredAtBothEndsOfAPass) {
  const std::vector<int> order = {0, 1, 2, 0};
  Script script({.units = 3, .prefetch = 1, .slots = 2, .own_buffers = {0}});
  const auto forward = [&] {
    std::string text;
    for (std::size_t i = 0; i < order.size(); ++i) {
      text += script.touch({order[i]}, Pass::kForward, i) + "; ";
      text += script.end({order[i]}) + "; ";
    }
    return text;
  };
  forward();
  script.run(Pass::kBackward, Script::each({0, 2, 1, 0}));
  script.end_backward();
  EXPECT_EQ(forward(),
            "start 0@0, start 1@1, wait 0@0; free 0@0; "
            "start 2@0, wait 1@1; free 1@1; "
            "start 0@1, wait 2@0; ; "
            "wait 0@1; ; ");
  EXPECT_EQ(script.backward({0}), "") << "2 has stayed, which comes after the root";
  EXPECT_EQ(script.end({0}), "free 0@1");
  EXPECT_EQ(script.misses(), 0);
  script.end_backward();
}

TEST(ScheduleSlotsTest, AKeptRootIsGatheredOnceAStepIntoItsOwnSlot) {
  Script script({.units = 3, .prefetch = 1, .slots = 2, .kept = {0}, .own_buffers = {0}});
  for (int step = 0; step < 3; ++step) {
    script.touch({0}, Pass::kForward, 100);
    EXPECT_EQ(script.checked().actions().front(), (Action{ActionKind::kStartGather, 0, 2}));
    script.end({0});
    script.run(Pass::kForward, Script::each({1, 2, 0}));
    EXPECT_TRUE(script.schedule().is_unsharded(0));
    script.run(Pass::kBackward, Script::each({0, 2, 1, 0}));
    EXPECT_TRUE(script.schedule().is_unsharded(0));
    EXPECT_THAT(script.end_backward(), HasSubstr("free 0@2"));
    EXPECT_EQ(script.live(), 0);
  }
  // 0 once, 1 and 2 in forward, 1 and 2 in backward; once the order is known, 2 stays over the
  // turn.
  EXPECT_EQ(script.checked().gathers(), 5 + 2 * 4);
  EXPECT_EQ(script.schedule().peak_live(), 3);
}

TEST(ScheduleSlotsTest, KeptUnitsStayFromForwardToTheEndOfBackward) {
  Script script({.units = 3, .prefetch = 1, .slots = 1, .kept = {0, 2}});
  for (int step = 0; step < 3; ++step) {
    script.run(Pass::kForward, Script::each({0, 1, 2}));
    EXPECT_TRUE(script.schedule().is_unsharded(0));
    EXPECT_EQ(script.live(), step == 0 ? 2 : 3) << "once the order is known, 1 stays as well";
    script.run(Pass::kBackward, Script::each({2, 1, 0}));
    EXPECT_TRUE(script.schedule().is_unsharded(2));
    script.end_backward();
    EXPECT_EQ(script.live(), 0);
  }
  EXPECT_EQ(script.checked().gathers(), 4 + 2 * 3) << "unit 1 twice in the first step only";
}

TEST(ScheduleSlotsTest, KeptUnitsAreFreedWhereAnEvaluationEnds) {
  Script script({.units = 2, .prefetch = 0, .slots = 1, .kept = {0, 1}});
  script.run(Pass::kEvaluation, Script::each({0, 1}));
  EXPECT_EQ(script.live(), 2) << "nothing foretells the end of the first one";
  script.run(Pass::kEvaluation, Script::each({0, 1}));
  EXPECT_EQ(script.live(), 0);
}

TEST(ScheduleSlotsTest, AKeptRootIsPrefetchedWhenAllOtherSlotsAreTaken) {
  Script script({.units = 3, .prefetch = 1, .slots = 2, .kept = {0}, .own_buffers = {0}});
  script.run(Pass::kEvaluation, {{1, 2}, {0}});
  script.reshard();
  EXPECT_EQ(script.evaluate({1, 2}), "start 1@0, start 2@1, start 0@2, wait 1@0, wait 2@1");
  script.end({1, 2});
}

TEST(ScheduleSlotsTest, ThePeakOutlivesTheUnitsThatMadeIt) {
  Script script({.units = 3, .prefetch = 0, .slots = 3});
  script.evaluate({0, 1, 2});
  script.end({0, 1, 2});
  script.evaluate({0});
  script.end({0});
  script.reshard();
  script.evaluate({1});
  script.end({1});
  EXPECT_EQ(script.live(), 1);
  EXPECT_EQ(script.schedule().peak_live(), 3);
}

TEST(ScheduleSlotsTest, AConfigurationThatCannotWorkIsRefusedWithItsNumber) {
  const auto message = [](const Config& config) -> std::string {
    try {
      Schedule schedule(config);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument ? error.text() : "another code";
    }
    return "accepted";
  };
  EXPECT_THAT(message({.units = 1, .prefetch = -1}), HasSubstr("prefetch is -1"));
  EXPECT_THAT(message({.units = 1, .slots = 0}), HasSubstr("0 gather slots"));
  EXPECT_THAT(message({.units = 1, .reduce_buffers = 0}), HasSubstr("0 reduce buffers"));
  EXPECT_THAT(message({.units = -1}), HasSubstr("there are -1 units"));
  EXPECT_THAT(message({.units = 2, .kept = {2}}), HasSubstr("unit 2 of 2 was to have"));
  EXPECT_THAT(message({.units = 2, .own_buffers = {-2}}), HasSubstr("unit -2 of 2 was to have"));
  EXPECT_EQ(message({.units = 1}), "accepted");
}

}  // namespace
}  // namespace fsdp::schedule
