// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace fsdp::trace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string file_of(const Timeline& timeline, const Who& who) {
  std::string text = chrome_head("7");
  const auto lines = chrome_events(timeline, who);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += (i == 0 ? "" : ",\n") + lines[i];
  }
  return text + kChromeTail;
}

Timeline one_gather_and_its_use() {
  Timeline timeline;
  timeline.slices = {{.track = Track::kGather,
                      .kind = SliceKind::kGather,
                      .unit = 1,
                      .begin_ns = 1'000'001,
                      .end_ns = 1'002'000,
                      .bytes = 64,
                      .wait_ns = 500},
                     {.track = Track::kCompute,
                      .kind = SliceKind::kCompute,
                      .unit = 1,
                      .begin_ns = 1'002'000,
                      .end_ns = 1'005'000}};
  timeline.arrows = {{.gather = 0, .compute = 1}};
  timeline.levels = {{"gathered bytes", 1'000'001, 64}};
  return timeline;
}

std::map<std::string, std::vector<json>> by_phase(const std::string& text) {
  std::map<std::string, std::vector<json>> found;
  const json file = json::parse(text);
  for (const json& event : file.at("traceEvents")) {
    found[event.at("ph")].push_back(event);
  }
  return found;
}

TEST(Chrome, AFileHasSlicesArrowsAndLevelsWithTheNamesOfUnits) {
  const Who who{.rank = 3, .host = "a", .units = {"head", "blocks.0"}};
  auto events = by_phase(file_of(one_gather_and_its_use(), who));
  ASSERT_EQ(events["X"].size(), 2U);
  const json& gather = events["X"][0];
  EXPECT_EQ(gather.at("name"), "blocks.0");
  EXPECT_EQ(gather.at("pid"), 3);
  EXPECT_DOUBLE_EQ(gather.at("ts"), 1000.001);
  EXPECT_DOUBLE_EQ(gather.at("dur"), 1.999);
  EXPECT_EQ(gather.at("args").at("bytes"), 64);
  EXPECT_DOUBLE_EQ(gather.at("args").at("exposed_us"), 0.5);
  ASSERT_EQ(events["s"].size(), 1U);
  ASSERT_EQ(events["f"].size(), 1U);
  EXPECT_EQ(events["s"][0].at("id"), events["f"][0].at("id"));
  EXPECT_EQ(events["s"][0].at("tid"), gather.at("tid"));
  EXPECT_EQ(events["f"][0].at("tid"), events["X"][1].at("tid"));
  ASSERT_EQ(events["C"].size(), 1U);
  EXPECT_EQ(events["C"][0].at("args").at("value"), 64);
  EXPECT_EQ(events["M"][0].at("args").at("name"), "rank 3 on a");
}

TEST(Chrome, TheClocksOffsetIsAddedToEveryTime) {
  const auto plain = by_phase(file_of(one_gather_and_its_use(), {}));
  const auto moved = by_phase(file_of(one_gather_and_its_use(), {.clock_offset_ns = -2'000'000}));
  for (const char* phase : {"X", "s", "f", "C"}) {
    EXPECT_NEAR(moved.at(phase)[0].at("ts").get<double>(),
                plain.at(phase)[0].at("ts").get<double>() - 2000, 1e-9)
        << phase;
  }
}

TEST(Chrome, NamesThatAreNoTextOrHaveQuotesDoNotBreakTheFile) {
  Timeline timeline;
  timeline.slices = {{.track = Track::kProgram,
                      .kind = SliceKind::kRegion,
                      .name = "a\"b\\c\n\xff",
                      .begin_ns = 1,
                      .end_ns = 2}};
  const auto events = by_phase(file_of(timeline, {}));
  EXPECT_EQ(events.at("X")[0].at("name"), "a\"b\\c\n\xEF\xBF\xBD");
}

TEST(Chrome, WhatWasDroppedIsSaid) {
  EXPECT_THAT(file_of({.dropped = 12}, {}), HasSubstr("12 events beyond the limit are missing"));
  EXPECT_THAT(file_of({}, {}), testing::Not(HasSubstr("missing")));
}

}  // namespace
}  // namespace fsdp::trace
