// SPDX-License-Identifier: Apache-2.0
/// Nothing stays behind, whoever is killed and whatever ranks do about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "launch/guardian.hpp"
#include "launcher_process.hpp"

namespace fsdp::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::eventually;
using test::LauncherProcess;
using test::read_file;
using test::script;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Starts three processes that no polite signal ends: one ignores them, one has a session of its
/// own, one is a daemon whose parents have ended. Each leaves a file in $1 once it stands.
constexpr const char* kStubborn =
    "stay() { trap '' TERM INT HUP; : > $1; while :; do sleep 1; done; };"
    "d=$FSDP_TEST_FILES/$RANK;"
    "(stay $d.ignores) & "
    "setsid sh -c \"trap '' TERM; : > $d.session; exec sleep 600\" & "
    "setsid sh -c \"(trap '' TERM HUP; : > $d.daemon; exec sleep 600) &\";";

/// Exit code of a process that gets no namespace.
constexpr int kNoNamespace = 99;

class GuardianTest : public testing::Test {
 protected:
  LaunchOptions stubborn(int ranks, const std::string& text) {
    LaunchOptions options = script(ranks, std::string(kStubborn) + text);
    options.environment = {{"FSDP_TEST_FILES", files_.path()}};
    return options;
  }
  bool stand(int rank) {
    const std::string name = files_.path(std::to_string(rank));
    return eventually([&] {
      return ::access((name + ".ignores").c_str(), F_OK) == 0 &&
             ::access((name + ".session").c_str(), F_OK) == 0 &&
             ::access((name + ".daemon").c_str(), F_OK) == 0;
    });
  }

  fsdp::test::TemporaryDirectory files_;
};

TEST_F(GuardianTest, Fault128_AFailureLeavesNoDescendant) {
  const auto start = std::chrono::steady_clock::now();
  LauncherProcess launcher(stubborn(4,
                                    "if [ $RANK = 2 ]; then while [ ! -e $FSDP_TEST_FILES/1.daemon "
                                    "]; do sleep 0.02; done; exit 7; fi; wait"));
  EXPECT_EQ(launcher.wait(), 7);
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(3)) << "grace 1 s and 2 s";
  EXPECT_THAT(launcher.left_over(milliseconds(0)), IsEmpty());
}

TEST_F(GuardianTest, Fault128_SuccessLeavesNoDescendant) {
  LauncherProcess launcher(stubborn(2, "exit 0"));
  const pid_t guardian = launcher.guardian();
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
  EXPECT_THAT(launcher.left_over(milliseconds(0)), IsEmpty());
  EXPECT_NE(::kill(guardian, 0), 0);
}

TEST_F(GuardianTest, Fault128_AKilledLauncherLeavesNoDescendant) {
  LauncherProcess launcher(stubborn(3, "wait"));
  const pid_t guardian = launcher.guardian();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(stand(rank));
  }
  ASSERT_GE(launcher.left_over(milliseconds(0)).size(), 12u);
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_THAT(launcher.left_over(seconds(5)), IsEmpty());
  EXPECT_TRUE(eventually([&] { return ::kill(guardian, 0) != 0; }, seconds(5)));
}

TEST_F(GuardianTest, Fault128_ALauncherKilledAtAnyMomentLeavesNoDescendant) {
  constexpr unsigned kSeed = 20240607;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 12; ++round) {
    LauncherProcess launcher(stubborn(3, "wait"));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    // Every other time with all of its process group, as a shell's "kill -9 %1" does.
    ::kill(round % 2 == 0 ? launcher.pid() : -launcher.pid(), SIGKILL);
    EXPECT_THAT(launcher.left_over(seconds(5)), IsEmpty()) << "round " << round;
  }
}

TEST_F(GuardianTest, Fault128_AKilledGuardianLeavesNoDescendant) {
  LauncherProcess launcher(stubborn(2, "wait"));
  ASSERT_TRUE(stand(0) && stand(1));
  ::kill(launcher.guardian(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_THAT(launcher.output(), HasSubstr("the process that guards the ranks was killed"));
  EXPECT_THAT(launcher.left_over(milliseconds(0)), IsEmpty());
}

TEST_F(GuardianTest, Fault153_LauncherAndGuardianKilledTogetherLeaveNoDescendant) {
  for (const bool kills_second : {false, true}) {
    LauncherProcess launcher(stubborn(2, "wait"));
    ASSERT_TRUE(stand(0) && stand(1));
    const pid_t other = kills_second ? launcher.second_guard() : launcher.guardian();
    ::kill(launcher.pid(), SIGSTOP);  // so that it cannot clean up
    ::kill(other, SIGKILL);
    ::kill(launcher.pid(), SIGKILL);
    EXPECT_THAT(launcher.left_over(seconds(5)), IsEmpty());
  }
}

/// What `unshare --pid --fork --kill-child --mount-proc` does. Returns in the first process of the
/// namespace; the process that called it ends with that.
void enter_process_namespace() {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0) {
    ::_exit(kNoNamespace);
  }
  if (const pid_t first = ::fork(); first != 0) {
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    ::_exit(kNoNamespace);
  }
}

TEST_F(GuardianTest, Fault153_InAProcessNamespaceNothingOutlivesAllGuards) {
  LauncherProcess launcher(stubborn(2, "wait"), enter_process_namespace);
  if (launcher.wait(milliseconds(300)) == kNoNamespace) {
    GTEST_SKIP() << "this system gives no process namespace";
  }
  ASSERT_TRUE(stand(0) && stand(1));
  const pid_t first = test::first_child_of(launcher.pid());
  const pid_t second = test::first_child_of(first);
  const std::array guards{first, second, test::first_child_of(second)};
  for (const int signal : {SIGSTOP, SIGKILL}) {
    for (const pid_t guard : guards) {
      ::kill(guard, signal);
    }
  }
  EXPECT_THAT(launcher.left_over(seconds(5)), IsEmpty());
}

TEST_F(GuardianTest, Fault153_AStopReachesAGuardianThatWasStopped) {
  for (const int signal : {SIGTERM, SIGINT}) {
    LauncherProcess launcher(script(2, "echo up $RANK; exec sleep 60"));
    ASSERT_TRUE(launcher.says("up 0") && launcher.says("up 1"));
    ::kill(launcher.guardian(), SIGSTOP);
    ::kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait(), 128 + signal) << launcher.output();
  }
}

class StopTest : public GuardianTest, public testing::WithParamInterface<int> {};

TEST_P(StopTest, EndsAllWithinTheGrace) {
  LauncherProcess launcher(stubborn(2, "wait"));
  ASSERT_TRUE(stand(0) && stand(1));
  ::kill(launcher.pid(), GetParam());
  EXPECT_EQ(launcher.wait(seconds(4)), 128 + GetParam());
  EXPECT_THAT(launcher.output(),
              HasSubstr("fsdp run: stopped by signal " + std::to_string(GetParam())));
  EXPECT_THAT(launcher.left_over(milliseconds(0)), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Signals, StopTest, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& tested) {
                           return std::string(::sigabbrev_np(tested.param));
                         });

TEST_F(GuardianTest, ASecondInterruptKillsAtOnce) {
  LaunchOptions options = script(
      2, "trap 'echo told $RANK' INT; trap '' TERM; echo up $RANK; while :; do sleep 0.1; done");
  options.grace = seconds(60);
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.says("up 0") && launcher.says("up 1"));
  ::kill(launcher.pid(), SIGINT);
  // A second signal that comes before the first was handled is none.
  ASSERT_TRUE(launcher.says("told 0") && launcher.says("told 1"));
  EXPECT_EQ(launcher.wait(milliseconds(500)), -1);
  ::kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(seconds(5)), 128 + SIGINT);
}

/// As a rank: says so for each SIGUSR1 until the file "end" is there. A shell cannot stand in: it
/// traps no signal that was ignored when it started.
int answer_requests(const std::string& directory) {
  const std::string rank = std::getenv("RANK");
  static volatile std::sig_atomic_t requests = 0;
  if (rank != "2") {
    ::signal(SIGUSR1, [](int) { requests = requests + 1; });
  }
  std::printf("up %s\n", rank.c_str());
  std::fflush(stdout);
  eventually([&] {
    if (requests > 0) {
      requests = 0;
      std::printf("state %s\n", rank.c_str());
      std::fflush(stdout);
    }
    return ::access((directory + "/end").c_str(), F_OK) == 0;
  });
  return 0;
}

TEST_F(GuardianTest, UserSignalOneReachesAllRanksAndKillsNone) {
  constexpr const char* kDirectory = "FSDP_TEST_REQUESTS";
  if (const char* directory = std::getenv(kDirectory)) {
    ::_exit(answer_requests(directory));
  }
  LauncherProcess launcher({.ranks = 3,
                            .command = {"/proc/self/exe", "--gtest_filter=*UserSignalOne*"},
                            .environment = {{kDirectory, files_.path()}}});
  ASSERT_TRUE(launcher.says("up 0") && launcher.says("up 1") && launcher.says("up 2"));
  ::kill(launcher.pid(), SIGUSR1);
  EXPECT_TRUE(launcher.says("state 0") && launcher.says("[1] state 1"));
  files_.write("end", "");
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
}

/// Orders that the guardian leaves unread at its end make the kernel reset the channel, in front of
/// what it has reported.
TEST_F(GuardianTest, OrdersThatComeTooLateLoseNoReport) {
  constexpr int kJobs = 20;
  for (int job = 0; job < kJobs; ++job) {
    detail::RankCommand command;
    command.arguments = {"false"};
    command.program = detail::find_program("false");
    detail::Guardian guardian({command}, milliseconds(1000));
    pollfd channel{guardian.channel(), POLLIN, 0};
    ASSERT_EQ(::poll(&channel, 1, -1), 1);  // the rank has ended, the guardian looks for others
    guardian.send({.signal = SIGUSR1});
    siginfo_t end{};
    ASSERT_EQ(::waitid(P_ALL, 0, &end, WEXITED | WNOWAIT), 0);
    std::vector<detail::GuardianEvent::Kind> kinds;
    while (!guardian.is_lost()) {
      while (const auto event = guardian.receive()) {
        kinds.push_back(event->kind);
      }
    }
    EXPECT_THAT(
        kinds, ElementsAre(detail::GuardianEvent::Kind::kEnded, detail::GuardianEvent::Kind::kDone))
        << "job " << job;
  }
}

TEST_F(GuardianTest, ARankThatStandsStillIsNamedAndStopped) {
  LaunchOptions options = script(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 60");
  options.grace = seconds(40);
  LauncherProcess launcher(options);
  EXPECT_TRUE(launcher.says("rank 1 stands still, stopped by signal 19")) << launcher.output();
  ::kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(seconds(20)), 128 + SIGTERM) << "it can answer before the grace";
}

TEST_F(GuardianTest, Fault129_TheReportListsEveryRank) {
  LauncherProcess launcher(
      script(5,
             "case $RANK in 0) exit 0;; 1) sleep 0.2; exit 3;; 2) trap 'exit 5' "
             "TERM;; 3) trap '' TERM;; esac; while :; do sleep 0.05; done"));
  EXPECT_EQ(launcher.wait(), 3);
  EXPECT_THAT(
      launcher.output(),
      AllOf(HasSubstr("fsdp run: rank 1 exited with code 3, the first to fail\n"
                      "fsdp run: rank 0 exited with code 0\n"
                      "fsdp run: rank 2 exited with code 5, told to stop after rank 1 failed\n"
                      "fsdp run: rank 3 died of signal 9 (Killed), told to stop"),
            HasSubstr("fsdp run: rank 4 died of signal 15 (Terminated), told to stop")));
}

/// The report as the end of the output shows it.
std::vector<std::string> last_lines(const std::string& text, std::size_t count) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  lines.erase(lines.begin(),
              lines.end() - static_cast<std::ptrdiff_t>(std::min(count, lines.size())));
  return lines;
}

TEST_F(GuardianTest, Fault130_TheFirstFailureComesFirstInTheLastTwentyLines) {
  // The others write long traces and two of them end before the cause does.
  const std::string victim =
      "i=0; while [ $i -lt 40 ]; do echo trace $i >&2; i=$((i+1)); done;"
      "echo '[peer failed] all-gather: rank 3 is gone' >&2; exit 1;";
  LaunchOptions options = script(
      4,
      "case $RANK in 3) echo boom >&2; : > $FSDP_TEST_FILES/boom; sleep 0.05; exit 9;;"
      "0) sleep 0.3;; *) while [ ! -e $FSDP_TEST_FILES/boom ]; do sleep 0.01; done;; esac; " +
          victim);
  options.environment = {{"FSDP_TEST_FILES", files_.path()}};
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 9);
  const std::vector<std::string> lines = last_lines(launcher.output(), 20);
  const auto first = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.rfind("fsdp run: ", 0) == 0;
  });
  ASSERT_NE(first, lines.end()) << launcher.output();
  EXPECT_EQ(*first, "fsdp run: rank 3 exited with code 9, the first to fail; its last lines:");
  EXPECT_EQ(*(first + 1), "  | boom");
  EXPECT_EQ(lines.end() - first, 5) << "two lines and one for each of the others";
}

TEST_F(GuardianTest, Fault130_EightRanksThatFailTogetherAreAllListed) {
  for (int round = 0; round < 5; ++round) {
    // They would end by themselves on a slow machine, too.
    LauncherProcess launcher(script(8, "trap '' TERM; exit $((RANK + 10))"));
    const int code = launcher.wait();
    EXPECT_GE(code, 10);
    EXPECT_LE(code, 17);
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_THAT(launcher.output(), HasSubstr("rank " + std::to_string(rank) +
                                               " exited with code " + std::to_string(rank + 10)));
    }
    EXPECT_THAT(launcher.output(),
                testing::StartsWith("fsdp run: rank " + std::to_string(code - 10) + " "));
  }
}

}  // namespace
}  // namespace fsdp::launch
