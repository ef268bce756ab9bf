// SPDX-License-Identifier: Apache-2.0
/// One rank and two compute the same training: loss and gradient norm before clipping agree at each
/// step. SGD is there because AdamW divides a wrong constant factor of the gradient out again.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

constexpr std::size_t kSteps = 50;
constexpr double kTolerance = 1e-5;

class TrainParityTest : public ::testing::Test {
 protected:
  TrainParityTest() { directory_.write("text", sample_text(20000)); }

  std::vector<LogLine> log_of(const std::string& name, const std::vector<std::string>& flags) {
    const std::string log = directory_.path(name + ".jsonl");
    std::filesystem::remove(log);
    const CommandResult result =
        run_fsdp(laid_over(laid_over(tiny_training(directory_.path("text"), ""),
                                     {"--steps", std::to_string(kSteps), "--sample", "0",
                                      "--eval-every", "25", "--eval-batches", "1", "--log", log}),
                           flags));
    EXPECT_EQ(result.code, 0) << result.err;
    return read_log(log);
  }

  static double relative(double value, double reference) {
    return std::abs(value - reference) / std::abs(reference);
  }

  static void expect_same(const std::vector<LogLine>& one, const std::vector<LogLine>& other) {
    ASSERT_EQ(one.size(), kSteps);
    ASSERT_EQ(other.size(), kSteps);
    double worst_loss = 0, worst_norm = 0;
    for (std::size_t i = 0; i < kSteps; ++i) {
      worst_loss = std::max(worst_loss, relative(other[i].loss, one[i].loss));
      worst_norm = std::max(worst_norm, relative(other[i].grad_norm, one[i].grad_norm));
      EXPECT_LE(relative(other[i].loss, one[i].loss), kTolerance) << "step " << i + 1;
      EXPECT_LE(relative(other[i].grad_norm, one[i].grad_norm), kTolerance) << "step " << i + 1;
      EXPECT_EQ(std::isnan(one[i].validation_loss), std::isnan(other[i].validation_loss));
      if (!std::isnan(one[i].validation_loss)) {
        EXPECT_LE(relative(other[i].validation_loss, one[i].validation_loss), kTolerance);
      }
    }
    std::printf("worst relative difference: loss %.2g, gradient norm %.2g\n", worst_loss,
                worst_norm);
    EXPECT_LT(one.back().loss, 0.9 * one.front().loss) << "nothing was learned";
  }

  void compare(const std::vector<std::string>& flags,
               const std::vector<std::string>& two_rank_flags = {}) {
    const auto one = log_of("one", flags + std::vector<std::string>{"--ranks", "1"});
    const auto two =
        log_of("two", flags + two_rank_flags + std::vector<std::string>{"--ranks", "2"});
    expect_same(one, two);
  }

  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(TrainParityTest, Sgd) {
  compare({"--optimizer", "sgd", "--lr", "0.3", "--weight-decay", "0"});
}

TEST_F(TrainParityTest, AdamW) {
  compare({"--optimizer", "adamw", "--lr", "1e-3", "--eps", "1e-4"});
}

TEST_F(TrainParityTest, AdamWInDoubleWithItsUsualEps) {
  compare({"--optimizer", "adamw", "--lr", "3e-3", "--dtype", "float64"});
}

TEST_F(TrainParityTest, SgdWithMomentum) {
  compare({"--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9"});
}

TEST_F(TrainParityTest, MuonInDouble) {
  compare({"--optimizer", "muon", "--lr", "3e-3", "--dtype", "float64", "--untied"});
}

TEST_F(TrainParityTest, GradientAccumulationAndUntiedHead) {
  compare({"--optimizer", "sgd", "--lr", "0.3", "--untied", "--clip", "0.5"}, {"--batch", "2"});
}

/// On four ranks each strategy trains as one rank does.
class StrategyParityTest : public TrainParityTest,
                           public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(StrategyParityTest, EqualsOneRank) {
  const std::vector<std::string> sgd{"--optimizer", "sgd", "--lr", "0.3"};
  const auto one = log_of("one", sgd + std::vector<std::string>{"--ranks", "1"});
  const auto four = log_of("four", sgd + GetParam() + std::vector<std::string>{"--ranks", "4"});
  expect_same(one, four);
}

using Flags = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(
    Flags, StrategyParityTest,
    ::testing::Values(
        Flags{"--strategy", "shard-grad", "--recompute", "--offload"},
        Flags{"--strategy", "replicate", "--accumulate", "2", "--defer", "all"},
        Flags{"--strategy", "hybrid", "--shard", "2", "--accumulate", "2", "--defer", "replicas"},
        Flags{"--strategy", "hybrid-optimizer", "--shard", "2"},
        Flags{"--strategy", "secondary-shard", "--shard", "2", "--transport", "gloo"}),
    [](const auto& tested) {
      std::string name = tested.param[1];
      std::erase(name, '-');
      return name;
    });

/// Low precision learns what full precision learns, to a few hundredths of the loss.
class LowPrecisionTest : public TrainParityTest,
                         public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(LowPrecisionTest, LearnsAsFullPrecisionDoes) {
  const std::vector<std::string> adamw{"--lr", "1e-3", "--eps", "1e-4", "--ranks", "2"};
  const auto full = log_of("full", adamw);
  const auto low = log_of("low", adamw + GetParam());
  ASSERT_EQ(low.size(), kSteps);
  EXPECT_NE(low.back().loss, full.back().loss) << "nothing was rounded";
  EXPECT_LE(relative(low.back().loss, full.back().loss), 0.03);
}

INSTANTIATE_TEST_SUITE_P(Types, LowPrecisionTest,
                         ::testing::Values(Flags{"--param-dtype", "bf16", "--reduce-dtype", "bf16"},
                                           Flags{"--param-dtype", "fp16"}),
                         [](const auto& tested) { return tested.param[1]; });

}  // namespace
}  // namespace fsdp::test
