// SPDX-License-Identifier: Apache-2.0
/// How ranks meet, and what they say when they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
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

/// Without a socket from a launcher: rank 0 opens the port itself.
Variables own_port(const std::string& address) {
  const base::Descriptor listener = net::listen_on("", 0);
  return {{"MASTER_ADDR", address},
          {"MASTER_PORT", std::to_string(net::port_of(listener.get()))},
          {"FSDP_STORE_FD", ""},
          {"FSDP_SETUP_TIMEOUT", "20"}};
}

TEST(Setup, Fault124_RanksMeetAtLiteralsAndNames) {
  for (const std::string address : {"127.0.0.1", "localhost", "::1"}) {
    if (address == "::1" && !net::source_address_towards(address)) {
      continue;
    }
    for (const ProcessResult& rank : test::run_processes(2, address, [](int) { meet_and_add(); },
                                                         {.environment = own_port(address)})) {
      EXPECT_EQ(rank.exit_code, 0) << address << "\n" << rank.output;
    }
  }
}

TEST(Setup, Fault124_AClosedPortEndsBeforeTheTimeOutWithItsAddress) {
  Variables variables = own_port("localhost");
  variables.back().second = "1.5";
  const auto ranks = test::run_processes(2, "closed",
                                         [](int rank) {
                                           if (rank == 1) {
                                             init();
                                           }
                                         },
                                         {.environment = variables});
  EXPECT_EQ(ranks[1].exit_code, 1);
  EXPECT_THAT(ranks[1].output,
              AllOf(HasSubstr("[time-out] rank 1 of 2 cannot reach rank 0 at localhost:"),
                    HasSubstr("127.0.0.1:" + variables[1].second + ": Connection refused")));
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

TEST(Setup, Fault132_ASlowRankZeroIsWaitedForByName) {
  // The port is open from the start: the launcher has opened it.
  const auto ranks = test::run_processes(2, "slow", [](int rank) {
    ::sleep(rank == 0 ? 4 : 0);
    init();
  });
  EXPECT_EQ(ranks[0].exit_code, 0) << ranks[0].output;
  EXPECT_EQ(ranks[1].exit_code, 0) << ranks[1].output;
  EXPECT_THAT(ranks[1].output, HasSubstr("info: rank 1 of 2: waiting for rank 0 at 127.0.0.1:"));
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

TEST(Setup, Fault127_TwoRanksZeroAreAnErrorOnAll) {
  const auto ranks = test::run_processes(3, "twice",
                                         [](int rank) {
                                           if (rank == 1) {
                                             ::setenv("RANK", "0", 1);
                                           }
                                           init();
                                         },
                                         {.environment = {{"FSDP_SETUP_TIMEOUT", "30"}}});
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output,
                AllOf(HasSubstr("[invalid argument] RANK is '0' in 2 processes that meet"),
                      testing::Not(HasSubstr("waiting"))));
  }
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
      {.environment = {{"MASTER_PORT", port}, {"FSDP_STORE_FD", ""}, {"FSDP_SETUP_TIMEOUT", "3"}}});
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
