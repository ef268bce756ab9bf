// SPDX-License-Identifier: Apache-2.0
/// What holds when the guardian gets no time, or no peace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "launch/descendants.hpp"
#include "launcher_process.hpp"

namespace fsdp::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::eventually;
using test::LauncherProcess;
using test::read_file;
using test::script;
using testing::Contains;
using testing::HasSubstr;

bool has_ended(const std::string& pid) {
  return read_file("/proc/" + pid + "/stat").find(") Z ") != std::string::npos;
}

/// Descriptors that a process waits for with epoll.
int count_watched(pid_t pid) {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fdinfo", ignored)) {
    const std::string text = read_file(entry.path());
    for (auto at = text.find("tfd:"); at != std::string::npos; at = text.find("tfd:", at + 1)) {
      ++count;
    }
  }
  return count;
}

/// The channel to the guardian holds few orders; requests must not crowd out a stop.
TEST(SlowGuardian, AStopReachesAGuardianThatHasNoRoomForIt) {
  constexpr int kMoreThanTheChannelHolds = 400;
  LauncherProcess launcher(script(2, "echo up $RANK; exec sleep 60"));
  ASSERT_TRUE(launcher.says("up 0") && launcher.says("up 1"));
  const pid_t guardian = launcher.guardian();
  ::kill(guardian, SIGSTOP);
  for (int i = 0; i < kMoreThanTheChannelHolds; ++i) {
    ::kill(launcher.pid(), SIGUSR1);
    std::this_thread::sleep_for(milliseconds(1));  // two that wait are one
  }
  ::kill(launcher.pid(), SIGTERM);  // which lets it go on
  EXPECT_EQ(launcher.wait(seconds(20)), 128 + SIGTERM);
}

TEST(SlowGuardian, RanksThatEndWhileItStandsStillAreReportedInTheirOrder) {
  const fsdp::test::TemporaryDirectory files;
  LaunchOptions options = script(3,
                                 "echo $$ > $FILES/pid$RANK; while [ ! -e $FILES/end$RANK ]; do "
                                 "sleep 0.01; done; exit 1$RANK");
  options.environment = {{"FILES", files.path()}};
  LauncherProcess launcher(options);
  const auto pid_of = [&](const std::string& rank) {
    std::string text;
    eventually([&] { return (text = read_file(files.path("pid" + rank))).ends_with('\n'); });
    return text.substr(0, text.find('\n'));
  };
  const std::vector<std::string> pids{pid_of("0"), pid_of("1"), pid_of("2")};
  const pid_t guardian = launcher.guardian();
  ASSERT_TRUE(eventually([&] { return count_watched(guardian) == 4; })) << "ranks and channel";
  ::kill(guardian, SIGSTOP);
  for (const std::size_t rank : {2U, 0U, 1U}) {
    files.write("end" + std::to_string(rank), "");
    ASSERT_TRUE(eventually([&] { return has_ended(pids[rank]); })) << "rank " << rank;
  }
  ::kill(guardian, SIGCONT);
  EXPECT_EQ(launcher.wait(), 12);
  EXPECT_THAT(launcher.output(), HasSubstr("rank 2 exited with code 12, the first to fail"));
}

TEST(SlowGuardian, RequestsWithoutAPauseDoNotHideARankThatStandsStill) {
  LauncherProcess launcher(script(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi; exec sleep 60"));
  ASSERT_GT(launcher.guardian(), 0);  // the launcher is ready for signals
  EXPECT_TRUE(eventually([&] {
    ::kill(launcher.pid(), SIGUSR1);
    return launcher.output().find("rank 1 stands still") != std::string::npos;
  })) << launcher.output();
}

TEST(Descendants, AProcessWithALineEndInItsNameIsFound) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_NAME, "two)\nlines");
    ::pause();
    ::_exit(0);
  }
  const std::string comm = "/proc/" + std::to_string(child) + "/comm";
  EXPECT_TRUE(eventually([&] { return read_file(comm) == "two)\nlines\n"; }));
  EXPECT_THAT(detail::list_children(), Contains(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace fsdp::launch
