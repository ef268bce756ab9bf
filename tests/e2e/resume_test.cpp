// SPDX-License-Identifier: Apache-2.0
/// `fsdp train` that is killed and started again with the same line writes the log that it would
/// have written without.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "e2e/program.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() { directory_.write("text", sample_text(20000)); }

  std::vector<std::string> training(const std::string& name,
                                    const std::vector<std::string>& flags) const {
    return std::vector<std::string>{"train",
                                    "--preset",
                                    "tiny",
                                    "--data",
                                    directory_.path("text"),
                                    "--out",
                                    "",
                                    "--sample",
                                    "0",
                                    "--global-batch",
                                    "12",
                                    "--eval-batches",
                                    "1",
                                    "--eval-every",
                                    "10",
                                    "--log",
                                    log(name)} +
           flags;
  }
  std::string log(const std::string& name) const { return directory_.path(name + ".jsonl"); }
  std::string saves(const std::string& name) const { return directory_.path(name); }

  /// The same line as a person would repeat: it saves, and goes on from what is there.
  std::vector<std::string> saving(const std::string& name,
                                  const std::vector<std::string>& flags) const {
    return training(name, flags + std::vector<std::string>{"--save", saves(name), "--resume"});
  }

  /// Waits until the log of a run that is under way has `lines` lines.
  void await_lines(const std::string& name, std::size_t lines, RunningCommand& run) const {
    const auto end = Clock::now() + std::chrono::seconds(40);
    while (read_log(log(name)).size() < lines && !run.has_ended() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// Two logs with the same numbers, bit for bit.
  void expect_same(const std::string& name, const std::string& expected) const {
    const auto ours = read_log(log(name)), whole = read_log(log(expected));
    ASSERT_EQ(ours.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(ours[i].step, whole[i].step);
      EXPECT_EQ(ours[i].loss, whole[i].loss) << "step " << i + 1;
      EXPECT_EQ(ours[i].grad_norm, whole[i].grad_norm) << "step " << i + 1;
      EXPECT_EQ(std::isnan(ours[i].validation_loss), std::isnan(whole[i].validation_loss));
      if (!std::isnan(whole[i].validation_loss)) {
        EXPECT_EQ(ours[i].validation_loss, whole[i].validation_loss) << "step " << i + 1;
      }
    }
  }

  fsdp::test::TemporaryDirectory directory_;
};

/// How often each transport's run is killed and started again, kKills times each; also set by
/// FSDP_TEST_MOMENTS.
int rounds() {
  const char* text = std::getenv("FSDP_TEST_MOMENTS");
  return text == nullptr ? 1 : std::atoi(text);
}
constexpr int kKills = 5;

std::vector<pid_t> children_of(pid_t process) {
  const std::string id = std::to_string(process);
  std::ifstream children("/proc/" + id + "/task/" + id + "/children");
  return {std::istream_iterator<pid_t>(children), {}};
}

/// One of the ranks that a launcher started, below those that guard them; 0 when there is none
/// (yet).
pid_t a_rank_of(pid_t launcher, std::size_t number) {
  std::vector<pid_t> below = children_of(launcher);
  while (below.size() == 1 && !children_of(below.front()).empty()) {
    below = children_of(below.front());
  }
  return below.size() < 2 ? 0 : below[number % below.size()];
}

class KilledRun : public ResumeTest,
                  public ::testing::WithParamInterface<std::tuple<std::string, int>> {};

TEST_P(KilledRun, Fault101_KilledAtAnyMomentItGoesOnToTheSameBits) {
  const auto& [transport, round] = GetParam();
  const std::vector<std::string> flags = {"--steps", "80",          "--dropout",
                                          "0.1",     "--transport", transport};
  ASSERT_EQ(run_fsdp(training("whole", flags)).code, 0);
  const auto every = saving("killed", flags + std::vector<std::string>{"--save-every", "3"});
  std::mt19937 random(20240701 + static_cast<unsigned>(round));
  std::size_t lines = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    RunningCommand run(std::vector<std::string>{fsdp_program()} + every,
                       {{"OMP_NUM_THREADS", "1"}});
    await_lines("killed", lines + 5 + random() % 8, run);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    // The whole job, or one rank, which its launcher and its peer have to notice.
    const pid_t rank = kill % 2 == 1 ? a_rank_of(run.pid(), random()) : 0;
    ::kill(rank > 0 ? rank : run.pid(), SIGKILL);
    EXPECT_NE(run.wait().code, 0) << "kill " << kill << " came too late";
    lines = read_log(log("killed")).size();
    const auto latest = archive::latest_checkpoint(saves("killed"));
    ASSERT_TRUE(latest.found.has_value()) << "kill " << kill;
    EXPECT_THAT(archive::verify_checkpoint(latest.found->path), IsEmpty());
  }
  const CommandResult last = run_fsdp(every);
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("resumed  after step"));
  expect_same("killed", "whole");
}

INSTANTIATE_TEST_SUITE_P(Transports, KilledRun,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::Range(0, rounds())),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "Round" +
                                  std::to_string(std::get<1>(tested.param));
                         });

TEST_F(ResumeTest, SigtermSavesTheStepUnderWayAndEndsWith143) {
  const std::vector<std::string> flags = {"--steps", "60", "--optimizer", "sgd", "--lr", "0.1"};
  ASSERT_EQ(run_fsdp(training("whole", flags)).code, 0);
  {
    RunningCommand run(std::vector<std::string>{fsdp_program()} + saving("stopped", flags),
                       {{"OMP_NUM_THREADS", "1"}});
    await_lines("stopped", 10, run);
    run.send(SIGTERM);
    const CommandResult result = run.wait();
    EXPECT_EQ(result.code, 143) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by SIGTERM"));
  }
  const auto latest = archive::latest_checkpoint(saves("stopped"));
  ASSERT_TRUE(latest.found.has_value());
  EXPECT_EQ(latest.found->step, static_cast<std::int64_t>(read_log(log("stopped")).size()));
  const CommandResult rest = run_fsdp(saving("stopped", flags));
  EXPECT_EQ(rest.code, 0) << rest.err;
  expect_same("stopped", "whole");
  const CommandResult again = run_fsdp(saving("stopped", flags));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("resumed  after step 60"));
  expect_same("stopped", "whole");
}

TEST_F(ResumeTest, Fault085_EveryOptimizerGoesOnToTheSameBits) {
  const std::vector<std::vector<std::string>> optimizers = {
      {"--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.05"},
      {"--optimizer", "lion", "--lr", "1e-3"},
      {"--optimizer", "muon", "--lr", "3e-3"}};
  for (const std::vector<std::string>& optimizer : optimizers) {
    const std::string& name = optimizer[1];
    // The rate is the same whatever the number of steps, so that a run can be cut in two.
    const auto steps = [&](const char* count) {
      return optimizer + std::vector<std::string>{"--min-lr", optimizer.back(), "--warmup",
                                                  "0",        "--steps",        count};
    };
    ASSERT_EQ(run_fsdp(training(name + "-whole", steps("8"))).code, 0) << name;
    ASSERT_EQ(run_fsdp(saving(name + "-cut", steps("4"))).code, 0) << name;
    const CommandResult rest = run_fsdp(saving(name + "-cut", steps("8")));
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_THAT(rest.out, HasSubstr("resumed  after step 4"));
    const auto ours = read_log(log(name + "-cut")), whole = read_log(log(name + "-whole"));
    ASSERT_EQ(ours.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(ours[i].loss, whole[i].loss) << name << " step " << i + 1;
      EXPECT_EQ(ours[i].grad_norm, whole[i].grad_norm) << name << " step " << i + 1;
    }
  }
}

TEST_F(ResumeTest, Fault118_AnotherWorldSizeGoesOnWithTheSameSamples) {
  const std::vector<std::string> flags = {"--eps", "1e-4", "--lr", "1e-3", "--warmup", "2"};
  const auto steps = [&](const char* count, const char* ranks) {
    return flags + std::vector<std::string>{"--steps", count, "--ranks", ranks};
  };
  // The rate is the same whatever the number of steps, so that a run can be cut in three.
  const std::vector<std::string> constant = {"--min-lr", "1e-3"};
  ASSERT_EQ(run_fsdp(training("whole", steps("30", "1") + constant)).code, 0);
  ASSERT_EQ(run_fsdp(saving("changed", steps("10", "2") + constant)).code, 0);
  ASSERT_EQ(run_fsdp(saving("changed", steps("20", "3") + constant)).code, 0);
  const CommandResult last = run_fsdp(saving("changed", steps("30", "1") + constant));
  ASSERT_EQ(last.code, 0) << last.err;
  const auto ours = read_log(log("changed")), whole = read_log(log("whole"));
  ASSERT_EQ(ours.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(ours[i].loss, whole[i].loss, 1e-5 * whole[i].loss) << "step " << i + 1;
  }
}

TEST_F(ResumeTest, Fault118_OtherDataOrAnotherSeedIsRefused) {
  ASSERT_EQ(run_fsdp(saving("run", {"--steps", "2"})).code, 0);
  const CommandResult seed = run_fsdp(saving("run", {"--steps", "4", "--seed", "2"}));
  EXPECT_EQ(seed.code, 2);
  EXPECT_THAT(seed.err, HasSubstr("seed"));
  directory_.write("text", sample_text(9000));
  const CommandResult data = run_fsdp(saving("run", {"--steps", "4"}));
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("windows"));
}

TEST_F(ResumeTest, Fault117_ThePositionIsAbsoluteAfterEveryResume) {
  const std::vector<std::string> constant = {"--lr", "1e-3", "--min-lr", "1e-3", "--warmup", "0"};
  ASSERT_EQ(run_fsdp(training("whole", constant + std::vector<std::string>{"--steps", "25"})).code,
            0);
  for (const char* steps : {"5", "12", "13", "25"}) {
    ASSERT_EQ(run_fsdp(saving("cut", constant + std::vector<std::string>{"--steps", steps})).code,
              0);
  }
  const auto ours = read_log(log("cut")), whole = read_log(log("whole"));
  ASSERT_EQ(ours.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(ours[i].loss, whole[i].loss) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace fsdp::test
