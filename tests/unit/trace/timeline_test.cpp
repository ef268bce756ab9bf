// SPDX-License-Identifier: Apache-2.0
#include "trace/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace fsdp::trace {
namespace {

using enum EventKind;

Event at(std::int64_t time_ns, EventKind kind, int unit, std::int64_t bytes = 0) {
  return {.kind = kind, .unit = unit, .time_ns = time_ns, .bytes = bytes};
}

Timeline timeline_of(std::vector<Event> events) {
  return make_timeline({.events = std::move(events)});
}

std::vector<Slice> of_kind(const Timeline& timeline, SliceKind kind) {
  std::vector<Slice> found;
  std::ranges::copy_if(timeline.slices, std::back_inserter(found),
                       [&](const Slice& slice) { return slice.kind == kind; });
  return found;
}

MATCHER_P3(Lasts, unit, begin, end, "") {
  return arg.unit == unit && arg.begin_ns == begin && arg.end_ns == end;
}

/// Two units in forward: the second is gathered while the first computes.
std::vector<Event> forward_of_two() {
  return {at(10, kTouch, 0),
          at(11, kGatherStart, 0, 100),
          at(12, kGatherStart, 1, 200),
          at(13, kGatherWaitBegin, 0),
          at(20, kGatherWaitEnd, 0),
          at(30, kTouch, 0),
          at(50, kTouch, 1),
          at(51, kFree, 0),
          at(52, kGatherWaitBegin, 1),
          at(52, kGatherWaitEnd, 1),
          at(90, kBackwardEnd, -1)};
}

TEST(Timeline, AUnitComputesFromTheEndOfItsWaitToTheNextUnitsTouch) {
  const Timeline timeline = timeline_of(forward_of_two());
  EXPECT_THAT(of_kind(timeline, SliceKind::kCompute),
              testing::ElementsAre(Lasts(0, 20, 50), Lasts(1, 52, 90)));
  EXPECT_THAT(of_kind(timeline, SliceKind::kWaitGather), testing::ElementsAre(Lasts(0, 13, 20)));
}

TEST(Timeline, AGatherLastsUntilItIsTakenAndKnowsWhatOfItWasExposed) {
  const Timeline timeline = timeline_of(forward_of_two());
  const std::vector<Slice> gathers = of_kind(timeline, SliceKind::kGather);
  ASSERT_THAT(gathers, testing::ElementsAre(Lasts(0, 11, 20), Lasts(1, 12, 52)));
  EXPECT_EQ(gathers[0].wait_ns, 7);
  EXPECT_EQ(gathers[1].wait_ns, 0);
  EXPECT_EQ(gathers[1].bytes, 200);
  EXPECT_NE(gathers[0].lane, gathers[1].lane) << "they overlap";
  ASSERT_EQ(timeline.arrows.size(), 2U);
  for (const Arrow& arrow : timeline.arrows) {
    EXPECT_EQ(timeline.slices[arrow.gather].unit, timeline.slices[arrow.compute].unit);
  }
}

TEST(Timeline, GatheredBytesRiseAtTheIssueAndFallWhenTheyAreFreed) {
  std::vector<double> values;
  for (const Level& level : timeline_of(forward_of_two()).levels) {
    EXPECT_EQ(level.name, "gathered bytes");
    values.push_back(level.value);
  }
  EXPECT_THAT(values, testing::ElementsAre(100, 300, 200));
}

TEST(Timeline, AnOperatorThatTakesTwoUnitsWaitsForBothBeforeItComputes) {
  const Timeline timeline =
      timeline_of({at(0, kTouch, 0), at(0, kTouch, 1), at(1, kGatherStart, 0, 8),
                   at(2, kGatherStart, 1, 8), at(3, kGatherWaitBegin, 0), at(5, kGatherWaitEnd, 0),
                   at(6, kGatherWaitBegin, 1), at(9, kGatherWaitEnd, 1), at(20, kBackwardEnd, -1)});
  EXPECT_THAT(of_kind(timeline, SliceKind::kCompute), testing::ElementsAre(Lasts(1, 9, 20)));
  EXPECT_EQ(timeline.arrows.size(), 2U) << "the computation took both units' weights";
}

TEST(Timeline, AReductionThatIsWaitedForInTheMidstOfAUnitPartsItsComputation) {
  const Timeline timeline =
      timeline_of({at(0, kTouch, 3), at(5, kReduceStart, 4), at(10, kReduceWaitBegin, 4),
                   at(14, kReduceWaitEnd, 4), at(30, kBackwardEnd, -1)});
  EXPECT_THAT(of_kind(timeline, SliceKind::kCompute),
              testing::ElementsAre(Lasts(3, 0, 10), Lasts(3, 14, 30)));
  EXPECT_THAT(of_kind(timeline, SliceKind::kWaitReduce), testing::ElementsAre(Lasts(4, 10, 14)));
  const std::vector<Slice> reductions = of_kind(timeline, SliceKind::kReduce);
  ASSERT_THAT(reductions, testing::ElementsAre(Lasts(4, 5, 14)));
  EXPECT_EQ(reductions[0].wait_ns, 4);
}

TEST(Timeline, WhatIsGatheredForNothingIsShownAsSuch) {
  const Timeline timeline = timeline_of({at(0, kGatherStart, 2, 64), at(9, kFree, 2)});
  EXPECT_THAT(of_kind(timeline, SliceKind::kUnusedGather), testing::ElementsAre(Lasts(2, 0, 9)));
  EXPECT_EQ(timeline.levels.back().value, 0);
}

TEST(Timeline, ARecordingMayBeginAndEndInTheMidstOfEverything) {
  const Timeline timeline =
      timeline_of({at(0, kGatherWaitEnd, 1), at(1, kReduceWaitEnd, 2), at(2, kFree, 7),
                   at(3, kGatherStart, 5, 4), at(4, kReduceStart, 6), at(5, kTouch, 5)});
  EXPECT_THAT(timeline.slices, testing::IsEmpty());
}

TEST(Timeline, SlicesOfALaneDoNotOverlap) {
  std::vector<Event> events;
  for (int unit = 0; unit < 40; ++unit) {  // up to four gathers under way at a time
    events.push_back(at(unit * 10, kGatherStart, unit, 1));
    if (unit >= 3) {
      events.push_back(at(unit * 10 + 5, kTouch, unit - 3));
      events.push_back(at(unit * 10 + 6, kGatherWaitBegin, unit - 3));
      events.push_back(at(unit * 10 + 7, kGatherWaitEnd, unit - 3));
    }
  }
  std::vector<Slice> slices = timeline_of(events).slices;
  std::ranges::sort(slices, {}, &Slice::begin_ns);
  std::map<std::pair<Track, int>, std::int64_t> ends;
  for (const Slice& slice : slices) {
    EXPECT_GE(slice.begin_ns, (ends[{slice.track, slice.lane}]));
    ends[{slice.track, slice.lane}] = slice.end_ns;
    EXPECT_LT(slice.lane, 4);
  }
}

}  // namespace
}  // namespace fsdp::trace
