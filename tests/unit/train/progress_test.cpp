// SPDX-License-Identifier: Apache-2.0
#include "train/progress.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "support/temporary_directory.hpp"
#include "train/run_log.hpp"

namespace fsdp::train::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FormatTest, FiguresReadWell) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(842496), "842,496");
  EXPECT_EQ(format_count(1557611200), "1,557,611,200");
  EXPECT_EQ(format_rate(950), "950");
  EXPECT_EQ(format_rate(18234), "18.2k");
  EXPECT_EQ(format_rate(2.5e6), "2.50M");
  EXPECT_EQ(format_duration(0.4), "0s");
  EXPECT_EQ(format_duration(130), "2m 10s");
  EXPECT_EQ(format_duration(7500), "2h 5m");
}

class ProgressTest : public ::testing::Test {
 protected:
  std::string shown(int width, std::int64_t steps) {
    const std::string path = directory_.path("out");
    std::FILE* file = std::fopen(path.c_str(), "w");
    {
      Progress progress(file, steps, width);
      for (std::int64_t step = 1; step <= steps; ++step) {
        StepReport report{
            .step = step, .loss = 2.5, .grad_norm = 0.5, .lr = 1e-3, .tokens_per_s = 12000};
        if (step == 33) {
          report.validation_loss = 2.25;
        }
        progress.show(report);
      }
    }
    std::fclose(file);
    return file_text(path);
  }
  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(ProgressTest, ATerminalSeesOneLineRewritten) {
  const std::string text = shown(200, 100);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 100);
  EXPECT_THAT(text, HasSubstr("step 100/100"));
  EXPECT_THAT(text, HasSubstr("loss 2.5000  val 2.2500  12.0k tok/s  grad 0.500"));
}

TEST_F(ProgressTest, ANarrowTerminalSeesAsMuchAsFits) {
  const std::string text = shown(30, 1);
  const auto begin = text.find('\r') + 1;
  EXPECT_EQ(text.substr(begin, 9), "step 1/1 ");
  EXPECT_THAT(text, Not(HasSubstr("tok/s")));
}

TEST_F(ProgressTest, AFileSeesPlainLinesNowAndThen) {
  const std::string text = shown(0, 100);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 20 + 1);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, HasSubstr("step  33/100"));
}

TEST(RunLogTest, NumbersReadBackAsTheSameBits) {
  const double loss = 1.0 / 3.0;
  const std::string line = to_json({.step = 7,
                                    .loss = loss,
                                    .grad_norm = NAN,
                                    .lr = 1e-3,
                                    .tokens_per_s = 10,
                                    .validation_loss = 2.5});
  EXPECT_THAT(line, HasSubstr("\"step\":7,\"loss\":0.33333333333333331,\"grad_norm\":null"));
  EXPECT_THAT(line, HasSubstr(",\"val_loss\":2.5}"));
  EXPECT_EQ(std::strtod(line.c_str() + line.find("0.33"), nullptr), loss);
}

TEST(RunLogTest, WritesALineAStep) {
  const fsdp::test::TemporaryDirectory directory;
  RunLog log(directory.path("run.jsonl"));
  log.write({.step = 1, .loss = 5.5});
  log.write({.step = 2, .loss = 5.25});
  const std::string text = file_text(directory.path("run.jsonl"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, Not(HasSubstr("val_loss")));
}

}  // namespace
}  // namespace fsdp::train::detail
