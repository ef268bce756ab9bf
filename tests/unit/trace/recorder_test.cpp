// SPDX-License-Identifier: Apache-2.0
#include "fsdp/trace/recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace fsdp::trace {
namespace {

TEST(Recorder, KeepsWhatHappensBetweenStartAndStop) {
  Recorder recorder;
  const auto observe = recorder.observer();
  observe({.kind = EventKind::kTouch, .unit = 1});
  recorder.start();
  observe({.kind = EventKind::kTouch, .unit = 2});
  recorder.sample("live", 3);
  {
    const auto scope = trace_scope("loss");
  }
  recorder.stop();
  observe({.kind = EventKind::kTouch, .unit = 4});
  {
    const auto scope = trace_scope("later");
  }
  const Recording recording = recorder.take();
  ASSERT_EQ(recording.events.size(), 1U);
  EXPECT_EQ(recording.events[0].unit, 2);
  ASSERT_EQ(recording.regions.size(), 1U);
  EXPECT_EQ(recording.regions[0].name, "loss");
  EXPECT_GE(recording.regions[0].end_ns, recording.regions[0].begin_ns);
  ASSERT_EQ(recording.samples.size(), 1U);
  EXPECT_EQ(recorder.take().events.size(), 0U) << "taken once";
}

TEST(Recorder, RegionsLieWithinEachOtherAndStopEndsThoseThatAreOpen) {
  Recorder recorder;
  recorder.start();
  {
    const auto step = trace_scope("step");
    {
      const auto loss = trace_scope("loss");
    }
    recorder.stop();
  }
  const Recording recording = recorder.take();
  ASSERT_EQ(recording.regions.size(), 2U);
  EXPECT_EQ(recording.regions[0].name, "loss");
  EXPECT_EQ(recording.regions[1].name, "step");
  EXPECT_LE(recording.regions[1].begin_ns, recording.regions[0].begin_ns);
  EXPECT_GE(recording.regions[1].end_ns, recording.regions[0].end_ns);
}

TEST(Recorder, ScopesOfAnotherThreadAreNotThisOnes) {
  Recorder recorder;
  recorder.start();
  std::thread([] { const auto scope = trace_scope("elsewhere"); }).join();
  recorder.stop();
  EXPECT_TRUE(recorder.take().regions.empty());
}

TEST(Recorder, AScopeMayOutliveItsRecorder) {
  auto recorder = std::make_unique<Recorder>();
  recorder->start();
  recorder->stop();
  recorder.reset();
  const auto scope = trace_scope("alone");
}

TEST(Recorder, TheLimitHoldsForAllTogetherAndTheRestIsCounted) {
  Recorder recorder(3);
  recorder.start();
  for (int i = 0; i < 5; ++i) {
    recorder.record({.kind = EventKind::kTouch, .unit = i});
  }
  {
    const auto scope = trace_scope("loss");
  }
  recorder.sample("live", 1);
  recorder.stop();
  const Recording recording = recorder.take();
  EXPECT_EQ(recording.events.size(), 3U);
  EXPECT_EQ(recording.dropped, 4U);
}

}  // namespace
}  // namespace fsdp::trace
