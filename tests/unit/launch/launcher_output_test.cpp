// SPDX-License-Identifier: Apache-2.0
/// What ranks write, where it goes, and readers that leave; ports; the limits of the system.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "launcher_process.hpp"
#include "net/door.hpp"
#include "net/network.hpp"

namespace fsdp::launch {
namespace {

using base::Descriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::eventually;
using test::LauncherProcess;
using test::read_file;
using test::script;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  Descriptor read, write;
};

/// A launcher whose standard output is `pipe`; this process keeps the reading end only.
std::unique_ptr<LauncherProcess> launch_into(Pipe& pipe, const LaunchOptions& options) {
  auto launcher = std::make_unique<LauncherProcess>(options, [&] {
    ::dup2(pipe.write.get(), STDOUT_FILENO);
    pipe.read.reset();
  });
  pipe.write.reset();
  return launcher;
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 65536> buffer;
  for (ssize_t count = 0; (count = ::read(descriptor, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

TEST(LauncherOutput, AReaderThatLeavesStopsTheJob) {
  Pipe pipe;
  const auto launcher = launch_into(pipe, script(2, "while :; do echo again; done"));
  char byte = 0;
  ASSERT_EQ(::read(pipe.read.get(), &byte, 1), 1);
  pipe.read.reset();
  EXPECT_EQ(launcher->wait(seconds(5)), 128 + SIGPIPE);
  EXPECT_THAT(launcher->output(), HasSubstr("stopped by signal 13"));
  EXPECT_THAT(launcher->left_over(milliseconds(0)), IsEmpty());
}

TEST(LauncherOutput, AReaderThatReadsNothingDoesNotHoldUpAStop) {
  Pipe pipe;
  const auto launcher = launch_into(pipe, script(2, "while :; do echo again; done"));
  EXPECT_EQ(launcher->wait(milliseconds(500)), -1);
  ::kill(launcher->pid(), SIGTERM);
  EXPECT_EQ(launcher->wait(seconds(4)), 128 + SIGTERM);
  EXPECT_THAT(launcher->left_over(milliseconds(0)), IsEmpty());
}

TEST(LauncherOutput, AReaderThatReadsNothingDoesNotKeepAFailedJobAlive) {
  Pipe pipe;
  const auto launcher = launch_into(
      pipe,
      script(2, "if [ $RANK = 1 ]; then sleep 0.5; exit 4; fi; while :; do echo again; done"));
  EXPECT_THAT(launcher->left_over(seconds(4)), IsEmpty());
  EXPECT_THAT(read_all(pipe.read.get()), HasSubstr("again"));
  EXPECT_EQ(launcher->wait(), 4);
}

TEST(LauncherOutput, AHundredMegabytesArriveWhole) {
  Pipe pipe;
  const auto launcher = launch_into(
      pipe, script(2, "if [ $RANK = 1 ]; then exec head -c 100000000 /dev/zero; fi; echo zero"));
  std::size_t zeros = 0;
  const std::string text = read_all(pipe.read.get());
  for (const char letter : text) {
    zeros += letter == '\0' ? 1 : 0;
  }
  EXPECT_EQ(zeros, 100000000u);
  EXPECT_THAT(text, HasSubstr("zero\n"));
  EXPECT_EQ(launcher->wait(), 0);
}

TEST(LauncherOutput, RankZerosBytesAreKeptAsTheyAre) {
  Pipe pipe;
  const auto launcher = launch_into(pipe, script(1, "head -c 1000000 /dev/zero; echo"));
  EXPECT_EQ(read_all(pipe.read.get()), std::string(1000000, '\0') + "\n");
  EXPECT_EQ(launcher->wait(), 0);
}

TEST(LauncherOutput, Fault158_OutputThatIsLostIsNoSuccess) {
  const auto into_full_disk = [](int ranks, const std::string& text) {
    LauncherProcess launcher(script(ranks, text), [] {
      const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
      ::dup2(full.get(), STDOUT_FILENO);
    });
    const int code = launcher.wait();
    EXPECT_THAT(launcher.output(), HasSubstr("output is lost: No space left on device"));
    return code;
  };
  EXPECT_EQ(into_full_disk(2, "echo text"), 1);
  EXPECT_EQ(into_full_disk(2, "echo text; exit 5"), 5);
}

TEST(LauncherOutput, ARankMayCloseItsOutput) {
  LauncherProcess launcher(script(2, "exec >&- 2>&-; sleep 0.3; exit $((RANK * 6))"));
  EXPECT_EQ(launcher.wait(), 6);
  EXPECT_THAT(launcher.output(), HasSubstr("rank 1 exited with code 6"));
}

TEST(LauncherOutput, TheLauncherMayHaveNoStandardStreams) {
  LauncherProcess launcher(script(2, "cat; echo out; echo err >&2; exit $((RANK * 6))"), [] {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
  });
  EXPECT_EQ(launcher.wait(), 6);
}

TEST(LauncherOutput, OnlyRankZeroReadsStandardInput) {
  Pipe pipe;
  LauncherProcess launcher(script(2, "echo $RANK got $(cat)"), [&] {
    ::dup2(pipe.read.get(), STDIN_FILENO);
    pipe.write.reset();
  });
  ASSERT_EQ(::write(pipe.write.get(), "words\n", 6), 6);
  pipe.write.reset();
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_THAT(launcher.output(), AllOf(HasSubstr("0 got words\n"), HasSubstr("[1] 1 got\n")));
}

TEST(LauncherOutput, EachRankHasALogFile) {
  const fsdp::test::TemporaryDirectory directory;
  LaunchOptions options = script(2, "echo out $RANK; echo err $RANK >&2; printf end");
  options.log_dir = directory.path("a/b");
  for (int round = 0; round < 2; ++round) {  // the second overwrites
    LauncherProcess launcher(options);
    EXPECT_EQ(launcher.wait(), 0) << launcher.output();
    EXPECT_THAT(launcher.output(), AllOf(HasSubstr("out 0\n"), HasSubstr("[1] err 1\n")));
    for (const std::string rank : {"0", "1"}) {
      const std::string log = read_file(directory.path("a/b/rank-" + rank + ".log"));
      EXPECT_THAT(log, AllOf(HasSubstr("out " + rank + "\n"), HasSubstr("err " + rank + "\n"),
                             HasSubstr("end\n"), Not(HasSubstr("["))));
      EXPECT_EQ(log.size(), 16u);
    }
  }
}

TEST(LauncherOutput, ALogThatCannotBeWrittenIsRefusedBeforeAnyRankStarts) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string file = directory.write("file", "");
  for (const std::string& bad : {file, file + "/below", std::string("/proc/none")}) {
    LaunchOptions options = script(2, "echo started");
    options.log_dir = bad;
    LauncherProcess launcher(options);
    EXPECT_EQ(launcher.wait(), 2);
    EXPECT_THAT(launcher.output(), AllOf(HasSubstr(bad), Not(HasSubstr("started"))));
  }
}

TEST(LauncherOutput, Fault158_AFullLogEndsAndTheJobGoesOnToCode1) {
  const fsdp::test::TemporaryDirectory directory;
  ASSERT_EQ(::symlink("/dev/full", directory.path("rank-1.log").c_str()), 0);
  LaunchOptions options = script(2, "echo one; sleep 0.2; echo two");
  options.log_dir = directory.path();
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 1) << "the output is not there";
  EXPECT_THAT(launcher.output(),
              AllOf(HasSubstr("rank-1.log' ends here: No space left"), HasSubstr("[1] two\n")));
  EXPECT_EQ(read_file(directory.path("rank-0.log")), "one\ntwo\n");
}

TEST(LauncherOutput, QuietRanksAreQuotedWhenTheyFail) {
  LaunchOptions options = script(2, "echo line $RANK >&2; exit $((RANK * 3))");
  options.quiet_ranks = true;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 3);
  EXPECT_THAT(launcher.output(),
              AllOf(HasSubstr("line 0\n"), Not(HasSubstr("[1]")),
                    HasSubstr("the first to fail; its last lines:\n  | line 1\n")));
}

TEST(LauncherLimits, AHundredRanksFitIntoAFewOpenFiles) {
  LauncherProcess launcher(script(100, "ulimit -n"), [] {
    const rlimit limit{64, 4096};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  });
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
  EXPECT_THAT(launcher.output(), AllOf(HasSubstr("64\n"), HasSubstr("[99] 64\n")))
      << "the ranks get the limit that was set";
}

TEST(LauncherLimits, AProgramThatCannotRunIsNamed) {
  const fsdp::test::TemporaryDirectory directory;
  const std::string program = directory.write("program", "no program at all\n");
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  LaunchOptions options = script(3, "");
  options.command = {program};
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 2);
  EXPECT_THAT(launcher.output(),
              AllOf(HasSubstr("cannot run '" + program), HasSubstr("Exec format error")));
}

// ---- ports ------------------------------------------------------------------------------------

constexpr const char* kTokenVariable = "FSDP_TEST_TOKEN";

/// As a rank: rank 0 waits at the place that the port names for the others and for the job's own
/// token.
int meet(const std::string& token) {
  const std::string path =
      net::private_path(static_cast<std::uint16_t>(std::stoi(std::getenv("MASTER_PORT"))));
  if (std::string(std::getenv("RANK")) == "0") {
    const net::Door door = net::open_private_door(path);
    while (true) {
      const Descriptor peer(::accept(door.socket(), nullptr, nullptr));
      const std::string text = read_all(peer.get());
      if (!text.empty()) {  // else somebody who looked whether there is a listener
        return text == token ? 0 : 5;
      }
    }
  }
  net::Connection peer = net::connect_to_path(path);
  for (; peer.error != 0; peer = net::connect_to_path(path)) {
    ::usleep(1000);
  }
  return ::write(peer.socket.get(), token.data(), token.size()) ==
                 static_cast<ssize_t>(token.size())
             ? 0
             : 6;
}

TEST(LauncherPorts, Fault123_TwoLaunchersAtOnceTwentyTimes) {
  if (const char* token = std::getenv(kTokenVariable)) {
    ::_exit(meet(token));
  }
  // Whoever has the port that others use by default: this process, when it is free.
  const Descriptor foreign(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  ::bind(foreign.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  ::listen(foreign.get(), 1);
  for (int round = 0; round < 20; ++round) {
    std::array<std::unique_ptr<LauncherProcess>, 2> launchers;
    for (std::size_t i = 0; i < launchers.size(); ++i) {
      launchers[i] = std::make_unique<LauncherProcess>(LaunchOptions{
          .ranks = 2,
          .command = {"/proc/self/exe", "--gtest_filter=LauncherPorts.Fault123_TwoLaunchers*"},
          .environment = {{kTokenVariable, std::to_string(round) + "/" + std::to_string(i)}}});
    }
    for (const auto& launcher : launchers) {
      EXPECT_EQ(launcher->wait(), 0) << launcher->output();
    }
  }
}

TEST(LauncherPorts, Fault123_ABusyPortIsNamedWithItsOwner) {
  const Descriptor listener = net::listen_on("127.0.0.1", 0);
  LaunchOptions options = script(2, "echo started");
  options.master_port = net::port_of(listener.get());
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 2);
  EXPECT_THAT(launcher.output(),
              AllOf(HasSubstr("port " + std::to_string(options.master_port) +
                              ": Address already in use, it is held by process "),
                    HasSubstr("(guardian_test)"), Not(HasSubstr("started"))));
}

TEST(LauncherPorts, AFreePortMayBeChosen) {
  LaunchOptions options = script(1, "echo port $MASTER_PORT");
  {
    const Descriptor listener = net::listen_on("127.0.0.1", 0);
    options.master_port = net::port_of(listener.get());
  }
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
  EXPECT_EQ(launcher.output(), "port " + std::to_string(options.master_port) + "\n");
}

}  // namespace
}  // namespace fsdp::launch
