// SPDX-License-Identifier: Apache-2.0
#include "launch/launcher.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "fsdp/base/error.hpp"
#include "launch/core_sets.hpp"

namespace fsdp::launch {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs a shell script once for each rank.
LaunchOptions script(int ranks, const std::string& text) {
  return {.ranks = ranks, .command = {"/bin/sh", "-c", text}, .grace = milliseconds(1000)};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Captures the descriptors, which children inherit, not only the streams.
struct Outcome {
  int code = -1;
  std::string output;
  std::string error;
};

Outcome run_captured(const LaunchOptions& options) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run(options);
  outcome.output = testing::internal::GetCapturedStdout();
  outcome.error = testing::internal::GetCapturedStderr();
  return outcome;
}

class Launcher : public testing::Test {
 protected:
  Launcher() {
    std::string pattern = std::filesystem::temp_directory_path() / "fsdp-launch-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Launcher() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

TEST_F(Launcher, OneRankRunsToItsEnd) {
  const Outcome outcome = run_captured(script(1, "echo hello"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "hello\n");
  EXPECT_EQ(outcome.error, "");
}

TEST_F(Launcher, EveryRankSeesItsVariables) {
  const Outcome outcome =
      run_captured(script(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("0 0 3 3 127.0.0.1\n"), HasSubstr("[1] 1 1 3 3 127.0.0.1\n"),
                    HasSubstr("[2] 2 2 3 3 127.0.0.1\n"), Not(HasSubstr("[0]"))));
}

TEST_F(Launcher, RankZeroGetsAPrefixOnRequest) {
  LaunchOptions options = script(2, "echo line $RANK");
  options.rank_zero = RankZeroOutput::kPrefixed;
  EXPECT_THAT(run_captured(options).output,
              AllOf(HasSubstr("[0] line 0\n"), HasSubstr("[1] line 1\n")));
}

TEST_F(Launcher, OtherVariablesAndThreadsArePassedOn) {
  LaunchOptions options = script(2, "echo $COLOUR $OMP_NUM_THREADS");
  options.environment = {{"COLOUR", "blue"}};
  options.threads = 3;
  EXPECT_THAT(run_captured(options).output,
              AllOf(HasSubstr("blue 3\n"), HasSubstr("[1] blue 3\n")));
}

TEST_F(Launcher, ReturnsTheCodeOfTheRankThatFailedFirst) {
  const Outcome outcome =
      run_captured(script(3, "if [ $RANK = 2 ]; then exit 7; fi; sleep 0.5; exit 9"));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_THAT(outcome.error,
              testing::StartsWith("fsdp run: rank 2 exited with code 7, the first to fail\n"));
}

TEST_F(Launcher, ASignalBecomes128PlusItsNumber) {
  const Outcome outcome =
      run_captured(script(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 30"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("rank 1 died of signal 9"),
                    HasSubstr("rank 0 died of signal 15 (Terminated), told to stop after rank 1")));
}

TEST_F(Launcher, ANonBlockingOutputLosesNoLine) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK | O_CLOEXEC), 0);
  ::fcntl(pipe[0], F_SETFL, 0);
  std::size_t bytes = 0;
  std::thread reader([&] {
    std::array<char, 4096> buffer;
    pollfd space{pipe[1], POLLOUT, 0};
    while (::poll(&space, 1, 0) > 0) {  // until the pipe is full
      std::this_thread::yield();
    }
    for (ssize_t count = 0; (count = ::read(pipe[0], buffer.data(), buffer.size())) > 0;) {
      bytes += static_cast<std::size_t>(count);
    }
  });
  const int old_output = ::dup(STDOUT_FILENO);
  ::dup2(pipe[1], STDOUT_FILENO);
  EXPECT_EQ(run(script(1, "yes 1234567 | head -n 50000")), 0);
  ::dup2(old_output, STDOUT_FILENO);
  ::close(old_output);
  ::close(pipe[1]);
  reader.join();
  ::close(pipe[0]);
  EXPECT_EQ(bytes, 50000u * 8);
}

TEST_F(Launcher, ACodeAbove128IsNotASignal) {
  const Outcome outcome = run_captured(script(1, "exit 255"));
  EXPECT_EQ(outcome.code, 255);
  EXPECT_THAT(outcome.error, HasSubstr("rank 0 exited with code 255"));
}

TEST_F(Launcher, AHangUpEndsTheRanks) {
  const Outcome outcome = run_captured(script(
      2, "if [ $RANK = 1 ]; then kill -HUP " + std::to_string(::getpid()) + "; fi; sleep 60"));
  EXPECT_EQ(outcome.code, 128 + SIGHUP);
}

TEST_F(Launcher, Fault128_NoDescendantStays) {
  // Rank 1's grandchild ignores SIGTERM and has left the process group and the session.
  const std::string file = path("pid");
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome =
      run_captured(script(3, "if [ $RANK = 2 ]; then while [ ! -s " + file +
                                 " ]; do sleep 0.02; done; exit 7; fi;"
                                 "if [ $RANK = 1 ]; then setsid sh -c 'trap \"\" TERM; echo $$ > " +
                                 file + "; exec sleep 60' & fi; sleep 60"));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(3000));
  const pid_t pid = std::atoi(read_file(file).c_str());
  ASSERT_GT(pid, 0);
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST_F(Launcher, Fault129_TheGraceIsTimeForALastCheckpoint) {
  const std::string text = "if [ $RANK = 1 ]; then while [ ! -e " + path("ready") +
                           " ]; do sleep 0.02; done; exit 3; fi;"
                           "trap 'sleep $SAVE_S; echo saved > " +
                           path("saved") +
                           "; exit 0' TERM;"
                           "touch " +
                           path("ready") + "; while true; do sleep 0.05; done";
  LaunchOptions options = script(2, text);
  options.grace = milliseconds(100);
  options.environment = {{"SAVE_S", "20"}};
  EXPECT_EQ(run_captured(options).code, 3);
  EXPECT_FALSE(std::filesystem::exists(path("saved")));
  std::filesystem::remove(path("ready"));
  options.grace = milliseconds(20000);
  options.environment = {{"SAVE_S", "0.6"}};
  EXPECT_EQ(run_captured(options).code, 3);
  EXPECT_TRUE(std::filesystem::exists(path("saved")));
}

TEST_F(Launcher, SigtermIsPassedOnToAllRanks) {
  std::thread stopper([this] {
    while (!std::filesystem::exists(path("0")) || !std::filesystem::exists(path("1"))) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    ::kill(::getpid(), SIGTERM);
  });
  const Outcome outcome =
      run_captured(script(2, "trap 'echo stopped; exit 0' TERM; touch " + path("$RANK") +
                                 "; while true; do sleep 0.05; done"));
  stopper.join();
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("stopped\n"), HasSubstr("[1] stopped\n")));
}

TEST_F(Launcher, ALastLineWithoutAnEndIsShown) {
  EXPECT_THAT(run_captured(script(2, "printf 'no end %s' $RANK >&2")).error,
              AllOf(HasSubstr("no end 0\n"), HasSubstr("[1] no end 1\n")));
}

TEST_F(Launcher, AMissingProgramIsNotFound) {
  for (const char* name : {"./no-such-program", "no-such-program", "/tmp"}) {
    try {
      run({.ranks = 1, .command = {name}});
      ADD_FAILURE() << name << " was started";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotFound);
      EXPECT_THAT(error.text(), HasSubstr(name));
    }
  }
}

TEST_F(Launcher, BadOptionsAreRefused) {
  EXPECT_THROW(run({.ranks = 0, .command = {"true"}}), Error);
  EXPECT_THROW(run({.ranks = 2}), Error);
}

// ---- cores --------------------------------------------------------------------------------------

/// The cores that each of `ranks` ranks sees, by the system's list ("0-3,8").
std::vector<std::string> cores_of(int ranks, bool pins) {
  std::string pattern = std::filesystem::temp_directory_path() / "fsdp-cores-XXXXXX";
  const std::string directory = ::mkdtemp(pattern.data());
  LaunchOptions options =
      script(ranks, "grep Cpus_allowed_list /proc/self/status > " + directory + "/$RANK");
  options.pins_ranks = pins;
  EXPECT_EQ(run(options), 0);
  std::vector<std::string> lists;
  for (int rank = 0; rank < ranks; ++rank) {
    std::istringstream line(read_file(directory + "/" + std::to_string(rank)));
    std::string name, list;
    line >> name >> list;
    lists.push_back(list);
  }
  std::filesystem::remove_all(directory);
  return lists;
}

TEST(Cores, EachRankKeepsToItsOwnAndTogetherTheyHaveAll) {
  const auto sets = detail::divide_cores(2);
  if (sets.empty()) {
    GTEST_SKIP() << "one core";
  }
  cpu_set_t all, both, common;
  CPU_ZERO(&all);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_OR(&both, &sets[0], &sets[1]);
  CPU_AND(&common, &sets[0], &sets[1]);
  EXPECT_TRUE(CPU_EQUAL(&both, &all));
  EXPECT_EQ(CPU_COUNT(&common), 0);
  EXPECT_LE(CPU_COUNT(&sets[1]) - CPU_COUNT(&sets[0]), 1);

  const std::vector<std::string> pinned = cores_of(2, true);
  EXPECT_NE(pinned[0], pinned[1]);
  const std::vector<std::string> alone = cores_of(1, true);
  const std::vector<std::string> shared = cores_of(2, false);
  EXPECT_EQ(shared[0], shared[1]);
  EXPECT_EQ(shared[0], alone[0]);
  EXPECT_NE(shared[0], pinned[0]);
}

TEST(Cores, AreSharedByMoreRanksThanThereAre) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_TRUE(detail::divide_cores(CPU_COUNT(&all) + 1).empty());
  EXPECT_EQ(detail::divide_cores(CPU_COUNT(&all)).size(),
            static_cast<std::size_t>(CPU_COUNT(&all)));
}

}  // namespace
}  // namespace fsdp::launch
