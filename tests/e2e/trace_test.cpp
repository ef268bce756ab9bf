// SPDX-License-Identifier: Apache-2.0
/// `fsdp train --trace`: a file of all ranks with the steps that were asked for.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  TraceTest() { directory_.write("text", sample_text(20000)); }

  CommandResult train(const std::vector<std::string>& flags) {
    return run_fsdp(laid_over(tiny_training(directory_.path("text"), directory_.path("out")),
                              std::vector<std::string>{"--ranks", "2"} + flags));
  }

  std::string place() const { return directory_.path("trace"); }

  TemporaryDirectory directory_;
};

TEST_F(TraceTest, TheFileHasTheStepsThatWereAskedForOfAllRanks) {
  const CommandResult result = train({"--trace", place(), "--trace-steps", "2:3"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("trace of steps 2 to 3: " + place() + "/trace.json"));
  std::ifstream in(place() + "/trace.json");
  const json file = json::parse(in);
  std::map<int, std::map<std::string, int>> regions;
  for (const json& event : file.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == "program") {
      ++regions[event.at("pid")][event.at("name")];
    }
  }
  ASSERT_EQ(regions.size(), 2U) << "a process per rank";
  for (const auto& [rank, count] : regions) {
    EXPECT_EQ(count.at("step"), 2) << rank;
    EXPECT_EQ(count.at("optimizer"), 2) << rank;
    EXPECT_EQ(count.at("forward"), count.at("backward")) << rank;
  }
}

TEST_F(TraceTest, TheRunIsTheSameWithATrace) {
  ASSERT_EQ(train({"--log", directory_.path("plain")}).code, 0);
  ASSERT_EQ(
      train({"--log", directory_.path("traced"), "--trace", place(), "--trace-steps", "1:3"}).code,
      0);
  const auto plain = read_log(directory_.path("plain")),
             traced = read_log(directory_.path("traced"));
  ASSERT_EQ(plain.size(), traced.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].loss, traced[i].loss);
  }
}

TEST_F(TraceTest, StepsThatAreNoStepsOfTheRunAreRefusedBeforeItBegins) {
  for (const char* steps : {"5:4", "0:2", "1:9999", "x", "2:", ":3", "-1:2", "1:2:3"}) {
    const CommandResult result = train({"--trace", place(), "--trace-steps", steps});
    EXPECT_EQ(result.code, 2) << steps << result.out;
    EXPECT_THAT(result.err, HasSubstr("--trace-steps")) << steps;
  }
  EXPECT_FALSE(std::filesystem::exists(place()));
}

TEST_F(TraceTest, ATraceThatCannotBeWrittenIsSaidAndTheRunGoesOn) {
  directory_.write("file", "");
  const CommandResult result =
      train({"--trace", directory_.path("file/t"), "--trace-steps", "1:2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no trace, the run goes on: rank 0: [write_trace] '"));
  EXPECT_TRUE(std::filesystem::exists(directory_.path("out/model.safetensors")));
}

}  // namespace
}  // namespace fsdp::test
