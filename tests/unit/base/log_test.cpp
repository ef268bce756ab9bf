// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/log.hpp"

#include <gtest/gtest.h>

namespace fsdp::base {
namespace {

class Log : public testing::Test {
 protected:
  ~Log() override {
    set_log_level(LogLevel::kInfo);
    set_log_rank(-1);
  }
};

TEST_F(Log, LevelsAreNamed) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("info"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("warn"), LogLevel::kWarn);
  EXPECT_EQ(parse_log_level("quiet"), LogLevel::kQuiet);
  EXPECT_EQ(parse_log_level("loud"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level(nullptr), LogLevel::kInfo);
}

TEST_F(Log, LinesBelowTheLevelAreNotWritten) {
  set_log_level(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "one");
  log(LogLevel::kWarn, "two ", 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fsdp warning: two 2\n");
}

TEST_F(Log, QuietWritesNothing) {
  set_log_level(LogLevel::kQuiet);
  testing::internal::CaptureStderr();
  log(LogLevel::kWarn, "one");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Log, LinesNameTheRank) {
  set_log_rank(3);
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "here");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fsdp[3] info: here\n");
}

}  // namespace
}  // namespace fsdp::base
