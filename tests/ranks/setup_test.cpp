// SPDX-License-Identifier: Apache-2.0
/// How ranks meet, and what they say when they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo.hpp"
#include "comm/join/rendezvous.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/rank_env.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "net/listeners.hpp"
#include "net/network.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::ProcessResult;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Variables = std::vector<std::pair<std::string, std::string>>;

void meet_and_add(const std::string& transport = "auto") {
  const World world = init({.transport = transport});
  at::Tensor sum = at::full({1}, static_cast<float>(world.rank() + 1));
  world.transport().all_reduce(sum, {.name = "sum"});
  const auto size = static_cast<float>(world.size());
  EXPECT_EQ(sum.item<float>(), size * (size + 1) / 2);
}

/// The loopback interface, written so that ranks take it for the address of some host: rank 0
/// listens at its port.
constexpr const char* kLoopback = "0x7f000001";
constexpr const char* kLoopback6 = "0:0:0:0:0:0:0:1";
Variables over_hosts(const std::string& address = kLoopback) {
  return {{"MASTER_ADDR", address}, {"FSDP_SETUP_TIMEOUT", "20"}};
}

Variables and_then(Variables variables, const Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

TEST(Setup, Fault124_RanksMeetAtLiteralsAndNames) {
  for (const std::string address : {"127.0.0.1", "localhost", "::1", kLoopback, kLoopback6}) {
    if (address.find(':') != std::string::npos && !net::source_address_towards(address)) {
      continue;
    }
    for (const ProcessResult& rank : test::run_processes(2, address, [](int) { meet_and_add(); },
                                                         {.environment = over_hosts(address)})) {
      EXPECT_EQ(rank.exit_code, 0) << address << "\n" << rank.output;
    }
  }
}

TEST(Setup, Fault152_RanksOfOneHostListenOnNoPort) {
  // Somebody else has the port of the job on all interfaces, and answers nothing.
  const base::Descriptor stranger = net::listen_on("", 0);
  const std::string port = std::to_string(net::port_of(stranger.get()));
  for (const ProcessResult& rank : test::run_processes(2, "private", [](int) { meet_and_add(); },
                                                       {.environment = {{"MASTER_PORT", port}}})) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
  }
}

TEST(Setup, Fault152_OverHostsTheJobsSecretIsAskedFor) {
  const Variables shared = {{"FSDP_JOB_SECRET", "0123456789abcdef"}};
  for (const ProcessResult& rank :
       test::run_processes(2, "secret", [](int) { meet_and_add(); },
                           {.environment = and_then(over_hosts(), shared)})) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    EXPECT_THAT(rank.output, testing::Not(HasSubstr("without a secret")));
  }
  const auto ranks = test::run_processes(
      2, "another",
      [](int rank) {
        if (rank == 1) {
          ::setenv("FSDP_JOB_SECRET", "another secret of 31 characters", 1);
        }
        init();
      },
      {.environment = and_then(and_then(over_hosts(), shared), {{"FSDP_SETUP_TIMEOUT", "3"}})});
  EXPECT_THAT(ranks[0].output, HasSubstr("[time-out] rank 0 of 2 is still waiting for rank 1"));
  EXPECT_THAT(ranks[1].output,
              HasSubstr("[invalid argument] rank 1 of 2 is not admitted by rank 0 at 0x7f000001:"));
}

TEST(Setup, Fault152_WithoutASecretOverHostsItIsSaid) {
  const auto ranks =
      test::run_processes(2, "open", [](int) { meet_and_add(); }, {.environment = over_hosts()});
  EXPECT_EQ(ranks[0].exit_code, 0) << ranks[0].output;
  EXPECT_THAT(ranks[0].output, HasSubstr("without a secret"));
  EXPECT_THAT(ranks[1].output, testing::Not(HasSubstr("without a secret")));
}

TEST(Setup, Fault124_AClosedPortEndsBeforeTheTimeOutWithItsAddress) {
  const base::Descriptor held = net::hold_port(0);
  const std::string port = std::to_string(net::port_of(held.get()));
  const Variables variables =
      and_then(over_hosts(), {{"MASTER_PORT", port}, {"FSDP_SETUP_TIMEOUT", "1.5"}});
  const auto ranks = test::run_processes(2, "closed",
                                         [](int rank) {
                                           if (rank == 1) {
                                             init();
                                           }
                                         },
                                         {.environment = variables});
  EXPECT_EQ(ranks[1].exit_code, 1);
  EXPECT_THAT(ranks[1].output,
              AllOf(HasSubstr("[time-out] rank 1 of 2 cannot reach rank 0 at 0x7f000001:"),
                    HasSubstr("127.0.0.1:" + port + ": Connection refused")));
}

TEST(Setup, Fault132_WhoIsMissingIsSaidEarlyAndAtTheEnd) {
  const auto ranks = test::run_processes(3, "missing",
                                         [](int rank) {
                                           if (rank != 1) {
                                             init();
                                           }
                                         },
                                         {.environment = {{"FSDP_SETUP_TIMEOUT", "3"}}});
  for (const std::size_t rank : {0u, 2u}) {
    const std::string who = "rank " + std::to_string(rank) + " of 3";
    EXPECT_EQ(ranks[rank].exit_code, 1);
    EXPECT_LT(ranks[rank].duration, test::in_time(seconds(10))) << "the limit is 3 s";
    EXPECT_THAT(
        ranks[rank].output,
        AllOf(testing::ContainsRegex("info: " + who +
                                     ": waiting for rank 1 at 127.0.0.1:[0-9]+, 2.[0-9] s so far"),
              testing::ContainsRegex("\\[time-out\\] rank [02] of 3 is still waiting for rank 1 "
                                     "at 127.0.0.1:[0-9]+ after [23].[0-9] s")));
  }
}

void expect_a_slow_rank_zero_to_be_waited_for(const Variables& variables) {
  const auto ranks = test::run_processes(2, "slow",
                                         [](int rank) {
                                           ::usleep(rank == 0 ? 2500000 : 0);
                                           init();
                                         },
                                         {.environment = variables});
  EXPECT_EQ(ranks[0].exit_code, 0) << ranks[0].output;
  EXPECT_EQ(ranks[1].exit_code, 0) << ranks[1].output;
  EXPECT_THAT(ranks[1].output, HasSubstr("info: rank 1 of 2: waiting for rank 0 at "));
}

TEST(Setup, Fault132_ASlowRankZeroIsWaitedForByName) {
  expect_a_slow_rank_zero_to_be_waited_for({});
}

TEST(Setup, Fault132_ASlowRankZeroIsWaitedForOverHosts) {
  expect_a_slow_rank_zero_to_be_waited_for(over_hosts());
}

TEST(Setup, Fault132_ARankZeroThatStandsStillIsNamed) {
  const auto ranks =
      test::run_processes(3, "still",
                          [](int rank) {
                            if (rank == 0) {
                              std::thread([] {
                                ::sleep(1);
                                ::raise(SIGSTOP);
                              }).detach();
                            }
                            if (rank != 2) {
                              init();
                            }
                          },
                          {.limit = seconds(9), .environment = {{"FSDP_SETUP_TIMEOUT", "3"}}});
  EXPECT_TRUE(ranks[0].killed_by_test);
  EXPECT_FALSE(ranks[1].killed_by_test) << ranks[1].output;
  EXPECT_THAT(ranks[1].output, HasSubstr("[time-out] rank 1 of 3 got no answer of rank 0 at"));
}

void expect_two_ranks_zero_to_be_refused(const Variables& variables) {
  const auto ranks = test::run_processes(3, "twice",
                                         [](int rank) {
                                           if (rank == 1) {
                                             ::setenv("RANK", "0", 1);
                                           }
                                           init();
                                         },
                                         {.environment = variables});
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output,
                AllOf(HasSubstr("[invalid argument] RANK is '0' in 2 processes that meet"),
                      testing::Not(HasSubstr("waiting"))));
  }
}

TEST(Setup, Fault127_TwoRanksZeroAreAnErrorOnAll) {
  expect_two_ranks_zero_to_be_refused({{"FSDP_SETUP_TIMEOUT", "30"}});
}

TEST(Setup, Fault127_TwoRanksZeroOverHostsAreAnErrorOnAll) {
  expect_two_ranks_zero_to_be_refused(over_hosts());
}

TEST(Setup, Fault127_AnotherWorldSizeIsAnErrorOnAll) {
  const auto ranks = test::run_processes(3, "sizes",
                                         [](int rank) {
                                           if (rank == 2) {
                                             ::setenv("WORLD_SIZE", "4", 1);
                                           }
                                           init();
                                         },
                                         {.environment = {{"FSDP_SETUP_TIMEOUT", "30"}}});
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, AnyOf(HasSubstr("WORLD_SIZE is '4' in rank 2 and '3' in another"),
                                   HasSubstr("WORLD_SIZE is '3' in rank 0 and '4' in another"),
                                   HasSubstr("WORLD_SIZE is '3' in rank 1 and '4' in another")));
  }
}

TEST(Setup, Fault127_AnotherTransportIsAnErrorOnAll) {
  const auto ranks = test::run_processes(
      3, "transports", [](int rank) { init({.transport = rank == 2 ? "shm" : "gloo"}); },
      {.environment = {{"FSDP_SETUP_TIMEOUT", "30"}}});
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_LT(rank.duration, test::in_time(seconds(20))) << "the limit is 30 s";
    EXPECT_THAT(rank.output,
                AnyOf(HasSubstr("transport is 'shm' in rank 2 and 'gloo' in another"),
                      HasSubstr("transport is 'gloo' in rank 0 and 'shm' in another"),
                      HasSubstr("transport is 'gloo' in rank 1 and 'shm' in another")));
  }
}

TEST(Setup, Fault123_APortThatAStrangerHoldsIsNamedWithItsOwner) {
  const base::Descriptor stranger = net::listen_on("", 0);  // never answers
  const std::string port = std::to_string(net::port_of(stranger.get()));
  const auto ranks = test::run_processes(
      2, "stranger", [](int) { init(); },
      {.environment =
           and_then(over_hosts(), {{"MASTER_PORT", port}, {"FSDP_SETUP_TIMEOUT", "3"}})});
  EXPECT_EQ(ranks[0].exit_code, 1);
  EXPECT_THAT(
      ranks[0].output,
      AllOf(HasSubstr("cannot listen on port " + port + ": Address already in use"),
            HasSubstr("it is held by process " + std::to_string(::getpid()) + " (setup_test)")));
  EXPECT_EQ(ranks[1].exit_code, 1);
  EXPECT_THAT(ranks[1].output, HasSubstr("its port is open, but no store of a job answers"));
}

TEST(Setup, OptionsLimitTheMeetingAndTheWaitsAfterIt) {
  const auto ranks = test::run_processes(3, "options", [](int rank) {
    const World world = init({.setup_timeout = seconds(30), .timeout = milliseconds(700)});
    if (rank != 2) {
      try {
        world.barrier();
        ADD_FAILURE() << "a barrier without rank 2";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("0.7 s"));
      }
    } else {
      ::sleep(3);
    }
  });
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
  }
  const auto alone = test::run_processes(2, "alone", [](int rank) {
    if (rank == 0) {
      init({.setup_timeout = milliseconds(800)});
    }
  });
  EXPECT_THAT(alone[0].output, HasSubstr("still waiting for rank 1"));
}

TEST(Setup, TheSetUpTimeIsReadFromTheEnvironment) {
  ::setenv("FSDP_SETUP_TIMEOUT", "soon", 1);
  try {
    init();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("FSDP_SETUP_TIMEOUT is 'soon'"));
  }
  ::unsetenv("FSDP_SETUP_TIMEOUT");
}

TEST(Setup, Fault125_AWrongInterfaceIsAnErrorBeforeAnyWait) {
  for (const std::string name : {"^lo", "no-such-card"}) {
    const auto ranks = test::run_processes(2, name,
                                           [](int rank) {
                                             if (rank == 1) {
                                               init();
                                             }
                                           },
                                           {.environment = {{"GLOO_SOCKET_IFNAME", name}}});
    EXPECT_EQ(ranks[1].exit_code, 1);
    EXPECT_THAT(ranks[1].output,
                AllOf(HasSubstr("[invalid argument] GLOO_SOCKET_IFNAME is '" + name + "'"),
                      HasSubstr("lo (127.0.0.1")));
  }
}

TEST(Setup, TheInterfaceMayBeNamed) {
  for (const ProcessResult& rank : test::run_processes(
           2, "named", [](int) { meet_and_add("gloo"); },
           {.environment = {{"GLOO_SOCKET_IFNAME", "lo"}, {"FSDP_LOG", "debug"}}})) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    EXPECT_THAT(rank.output, HasSubstr("listens on 127.0.0.1 (lo), from GLOO_SOCKET_IFNAME"));
  }
}

}  // namespace
}  // namespace fsdp
