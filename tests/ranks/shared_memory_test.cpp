// SPDX-License-Identifier: Apache-2.0
/// The transport shm between processes: which ranks share a host, too little memory, a killed rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

/// Two processes that wish for a transport, `apart` as if on two hosts; they expect its name or an
/// error.
std::vector<test::ProcessResult> meet_as_hosts(const std::string& name, const std::string& wish,
                                               const std::string& expected, bool apart) {
  return test::run_processes(2, name,
                             [&](int rank) {
                               if (apart) {
                                 ::setenv("FSDP_HOST_ID", rank == 0 ? "left" : "right", 1);
                               }
                               try {
                                 const World world = init({.transport = wish});
                                 EXPECT_EQ(world.transport().traits().name, expected);
                                 world.barrier();
                               } catch (const Error& error) {
                                 EXPECT_EQ(error.text(), expected);
                               }
                             },
                             {.environment = {{"FSDP_TIMEOUT", "20"}}});
}

TEST(Hosts, AutoIsShmOnOneHostAndGlooBetweenHosts) {
  for (const auto& result : meet_as_hosts("together", "auto", "shm", false)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  for (const auto& result : meet_as_hosts("apart", "auto", "gloo", true)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(Hosts, ShmBetweenHostsIsRefusedOnAllRanksAndNamesBoth) {
  const std::string error =
      "transport shm needs all ranks on one host, but rank 0 is on 'left' and rank 1 on 'right': "
      "use gloo, or set FSDP_HOST_ID to one value where this is wrong";
  for (const auto& result : meet_as_hosts("refused", "shm", error, true)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(SharedMemory, TooLittleIsOneErrorOnAllRanksAndTheGroupGoesOn) {
  const auto results = test::run_processes(3, "little", [](int) {
    const World world = init({.transport = "shm"});
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 1 << 20;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text =
        error_of([&] { world.transport().shared_memory(5 << 20, {.name = "weights"}); });
    EXPECT_THAT(text, AllOf(HasSubstr("\"weights\": rank 0 "), HasSubstr("5246976 bytes"),
                            HasSubstr("1048576 bytes")));
    EXPECT_THAT(error_of([&] { world.transport().buffer(5 << 20); }), HasSubstr("[i/o]"));
    EXPECT_EQ(world.transport().shared_memory(1000, {.name = "less"}).numel(), 1000);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(SharedMemory, TooLittleToMeetIsOneErrorOnAllRanks) {
  for (const auto& result : test::run_processes(2, "small", [](int) {
         rlimit limit{};
         ::getrlimit(RLIMIT_FSIZE, &limit);
         limit.rlim_cur = 1 << 16;
         ::setrlimit(RLIMIT_FSIZE, &limit);
         EXPECT_THAT(error_of([] { init({.transport = "shm"}); }),
                     HasSubstr("exceeds the limit on file sizes of 65536 bytes"));
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(SharedMemory, ARankThatIsKilledEndsTheOthersWhileTheyRead) {
  const auto results = test::run_processes(
      3, "killed",
      [](int rank) {
        const World world = init({.transport = "shm"});
        if (rank == 1) {
          std::thread([] {
            std::this_thread::sleep_for(milliseconds(30));
            ::kill(::getpid(), SIGKILL);
          }).detach();
        }
        const comm::Link& group = world.link();
        const at::Tensor source = group.transport->buffer(3 << 20).view(at::kFloat);
        at::Tensor sum = at::zeros({1 << 18});
        const std::string text = error_of([&] {
          for (;;) {
            group.transport->reduce_scatter(sum, source, {}, {.unit = 3, .name = "h.3"})->wait();
          }
        });
        EXPECT_THAT(text, AllOf(HasSubstr("h.3"), HasSubstr("rank 1")));
        EXPECT_THAT(error_of([&] { group.job->recover(); }), HasSubstr("cannot come back"));
      },
      {.limit = seconds(40), .environment = {{"FSDP_TIMEOUT", "20"}}});
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].output;
}

/// Until a process has ended, reaped or not.
void await_end(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  for (;;) {
    std::string text;
    std::ifstream file(path);
    if (!std::getline(file, text) || text.find(") Z ") != std::string::npos) {
      return;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}

TEST(SharedMemory, Fault009_ARankThatIsKilledBeforeItsDataAreOpenedIsNamed) {
  const auto results = test::run_processes(
      3, "unopened",
      [](int rank) {
        const World world = init({.transport = "shm"});
        const comm::Link& group = world.link();
        at::Tensor processes = at::zeros({3}, at::kLong);
        const at::Tensor mine = at::full({1}, static_cast<std::int64_t>(::getpid()), at::kLong);
        group.transport->all_gather(processes, mine, {.name = "processes"})->wait();
        const at::Tensor source = group.transport->buffer(1 << 20).view(at::kFloat);
        at::Tensor all = at::zeros({3 << 18});
        const auto work = group.transport->all_gather(all, source, {.unit = 3, .name = "h.3"});
        if (rank == 1) {
          std::raise(SIGKILL);
        }
        await_end(static_cast<pid_t>(processes[1].item<std::int64_t>()));
        EXPECT_THAT(error_of([&] { work->wait(); }),
                    AllOf(HasSubstr("[peer failed]"), HasSubstr("h.3"), HasSubstr("rank 1")));
        EXPECT_THAT(error_of([&] { world.barrier(); }),
                    AllOf(HasSubstr("first failure"), HasSubstr("h.3"), HasSubstr("rank 1")));
      },
      {.limit = seconds(40), .environment = {{"FSDP_TIMEOUT", "20"}}});
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].output;
}

}  // namespace
}  // namespace fsdp
