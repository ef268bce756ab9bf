// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "support/temporary_directory.hpp"

namespace fsdp::train::detail {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string line(std::int64_t step, double loss) {
  return to_json({.step = step, .loss = loss}) + "\n";
}

TEST(RunLogTest, ARunThatBeginsForgetsWhatWasThere) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string path = directory.write("log", line(1, 2.0));
  RunLog(path).write({.step = 1, .loss = 3.0});
  EXPECT_EQ(text_of(path), line(1, 3.0));
}

TEST(RunLogTest, ARunThatGoesOnKeepsTheLinesBeforeIt) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string path =
      directory.write("log", line(1, 2.0) + line(2, 1.5) + line(3, 1.25) + R"({"step":4,"lo)");
  RunLog(path, 2).write({.step = 3, .loss = 1.0});
  EXPECT_EQ(text_of(path), line(1, 2.0) + line(2, 1.5) + line(3, 1.0));
  RunLog(path, 9).write({.step = 10, .loss = 0.5});
  EXPECT_EQ(text_of(path), line(1, 2.0) + line(2, 1.5) + line(3, 1.0) + line(10, 0.5));
}

TEST(RunLogTest, ALogThatBeganLateKeepsItsLines) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string path = directory.write("log", line(5, 2.0) + line(6, 1.5) + line(7, 1.25));
  RunLog(path, 6).write({.step = 7, .loss = 1.0});
  EXPECT_EQ(text_of(path), line(5, 2.0) + line(6, 1.5) + line(7, 1.0));
}

TEST(RunLogTest, TheLossOfAStepReadsBackAsTheSameBits) {
  const fsdp::test::TemporaryDirectory directory;
  const double loss = 1.0 / 3.0;
  const std::string path =
      directory.write("log", line(1, 2.0) + line(2, loss) + R"({"step":3,"loss":1)");
  EXPECT_EQ(logged_loss(path, 2), loss);
  EXPECT_FALSE(logged_loss(path, 3).has_value()) << "half a line";
  EXPECT_FALSE(logged_loss(path, 4).has_value());
  EXPECT_FALSE(logged_loss(directory.path("none"), 1).has_value());
}

TEST(RunLogTest, HalfALineIsNoLine) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string path = directory.write("log", line(1, 2.0) + R"({"step":2,"loss":1)");
  RunLog(path, 2).write({.step = 3, .loss = 1.0});
  EXPECT_EQ(text_of(path), line(1, 2.0) + line(3, 1.0));
}

}  // namespace
}  // namespace fsdp::train::detail
