// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.hpp"

#include <gmock/gmock.h>

namespace fsdp::train {
namespace {

TEST(ScheduleTest, WarmsUpLinearlyWithoutAZero) {
  const Schedule schedule{.lr = 1.0, .min_lr = 0.1, .warmup = 4, .steps = 100};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
}

TEST(ScheduleTest, FallsAsACosineToTheFloor) {
  const Schedule schedule{.lr = 1.0, .min_lr = 0.1, .warmup = 10, .steps = 111};
  EXPECT_DOUBLE_EQ(schedule.at(60), 0.55);
  EXPECT_DOUBLE_EQ(schedule.at(110), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 0.1);
  for (int step = 10; step < 110; ++step) {
    EXPECT_GT(schedule.at(step), schedule.at(step + 1));
  }
}

TEST(ScheduleTest, ShortRunsWork) {
  EXPECT_DOUBLE_EQ((Schedule{.lr = 1.0, .min_lr = 0.1, .warmup = 0, .steps = 1}).at(0), 1.0);
  EXPECT_DOUBLE_EQ((Schedule{.lr = 1.0, .min_lr = 0.1, .warmup = 2, .steps = 2}).at(1), 1.0);
}

TEST(ScheduleTest, FallsInALineOrStaysOrFallsAtTheEnd) {
  Schedule schedule{
      .lr = 1.0, .min_lr = 0.2, .warmup = 10, .steps = 111, .kind = ScheduleKind::kLinear};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(60), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(110), 0.2);
  schedule.kind = ScheduleKind::kConstant;
  EXPECT_DOUBLE_EQ(schedule.at(5), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(110), 1.0);
  schedule.kind = ScheduleKind::kWsd;
  schedule.decay_steps = 20;
  EXPECT_DOUBLE_EQ(schedule.at(90), 1.0) << "the last step before the fall";
  EXPECT_DOUBLE_EQ(schedule.at(100), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(110), 0.2);
  schedule.decay_steps = 111;
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0) << "no fall before the warm-up has ended";
}

}  // namespace
}  // namespace fsdp::train
