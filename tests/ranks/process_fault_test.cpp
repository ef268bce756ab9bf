// SPDX-License-Identifier: Apache-2.0
/// The same as transport_fault_test.cpp between processes: what ranks tell when one disagrees,
/// fails, sleeps or ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using comm::Work;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::gather;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kAbort = 128 + 6;

/// Runs `body` after fsdp::init() in every process; an Error ends the process with 10 + its code.
std::vector<test::ProcessResult> run_worlds(const std::string& transport, int size,
                                            const std::function<void(World)>& body) {
  return test::run_processes(size, "world",
                             [&](int) {
                               try {
                                 body(init({.transport = transport}));
                               } catch (const Error& error) {
                                 std::fprintf(stderr, "%s\n", error.what());
                                 std::fflush(nullptr);
                                 std::_Exit(10 + static_cast<int>(error.code()));
                               }
                             },
                             {.limit = seconds(40), .environment = {{"FSDP_TIMEOUT", "20"}}});
}

class Processes : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(
    Transports, Processes,
    testing::ValuesIn(test::transports({.ranks = {2, 3}, .recovers = true, .has_processes = true})),
    [](const auto& tested) { return tested.param; });

int code_of(ErrorCode code) { return 10 + static_cast<int>(code); }

TEST_P(Processes, TwoAndThreeRanksGatherReduceAndShareMemory) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    const comm::Link& group = world.link();
    EXPECT_EQ(group.transport->traits().name, GetParam());
    EXPECT_EQ(world.local_rank(), world.rank());
    at::Tensor dst = at::zeros({3 * 70001});
    group.transport
        ->all_gather(dst, at::full({70001}, static_cast<float>(world.rank())), {.unit = 0})
        ->wait();
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(dst.narrow(0, r * 70001, 70001).eq(r).all().item<bool>());
    }
    at::Tensor sum = at::zeros({70001});
    group.transport->reduce_scatter(sum, dst, {.divisor = 3}, {.unit = 0})->wait();
    EXPECT_TRUE(sum.eq(world.rank()).all().item<bool>());
    const at::Tensor shared = group.transport->shared_memory(1 << 20, {.name = "weights"});
    ASSERT_TRUE(shared.defined());
    shared[world.rank()].fill_(world.rank() + 1);
    world.barrier();
    EXPECT_EQ(shared.sum().item<std::int64_t>(), 6);
    world.barrier();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(Meeting, TheC10dTransportServesTheSameProgram) {
  const auto results = test::run_processes(2, "c10d", [](int) {
    World world = init({.transport = "c10d"});
    at::Tensor sum = at::full({3}, static_cast<float>(world.rank() + 1));
    world.transport().all_reduce(sum, {.name = "norm"});
    EXPECT_TRUE(sum.eq(3).all().item<bool>());
    world.barrier();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_P(Processes, Fault005_DifferentSizesEndBothRanksWithAnErrorNotAnAbort) {
  const auto results = run_worlds(GetParam(), 2, [](World world) {
    gather(world.rank() == 0 ? 16 : 20, at::kFloat, 0, "fc")(world.link())->wait();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, code_of(ErrorCode::kMismatch)) << result.output;
    EXPECT_NE(result.exit_code, kAbort);
    EXPECT_THAT(result.output, AllOf(HasSubstr("64 bytes"), HasSubstr("80 bytes")));
  }
}

TEST_P(Processes, Fault006_DifferentDtypesEndBothRanksWithAnErrorNotMixedBits) {
  const auto results = run_worlds(GetParam(), 2, [](World world) {
    gather(8, world.rank() == 0 ? at::kFloat : at::kInt, 0, "fc")(world.link())->wait();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, code_of(ErrorCode::kMismatch)) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("Float"), HasSubstr("Int")));
  }
}

TEST_P(Processes, ARankThatExitsEndsTheOthersWithinSeconds) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    world.barrier();
    if (world.rank() == 1) {
      std::_Exit(3);
    }
    gather(100000, at::kFloat, 5, "h.5")(world.link())->wait();
  });
  EXPECT_EQ(results[1].exit_code, 3);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, code_of(ErrorCode::kPeerFailed)) << results[rank].output;
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("h.5"), HasSubstr("rank 1")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(10)));
  }
}

TEST_P(Processes, ARankThatIsDoneEarlyIsSaidToHaveLeftNotToBeLost) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    const World mine = std::move(world);
    const int calls = mine.rank() == 1 ? 2 : 3;
    for (int i = 0; i < calls; ++i) {
      gather(8, at::kFloat, 5, "h.5")(mine.link())->wait();
    }
  });
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, code_of(ErrorCode::kPeerFailed)) << results[rank].output;
    EXPECT_THAT(results[rank].output,
                AllOf(HasSubstr("h.5"), HasSubstr("rank 1"), HasSubstr("has left the job early")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(10)));
  }
}

TEST_P(Processes, Fault009_ASleepingRankIsNamedByAllOthers) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    world.barrier();
    world.job().set_timeout(milliseconds(800));
    if (world.rank() == 2) {
      std::this_thread::sleep_for(seconds(4));
      std::_Exit(0);
    }
    gather(8, at::kFloat, 5, "h.5")(world.link())->wait();
  });
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(results[rank].exit_code,
                testing::AnyOf(code_of(ErrorCode::kTimeout), code_of(ErrorCode::kPeerFailed)));
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("missing: 2"), HasSubstr("h.5")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(6)));
  }
}

TEST_P(Processes, ARankThatEndsByAnExceptionIsTheFirstFailureOfTheOthers) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    const World mine = std::move(world);
    mine.barrier();
    if (mine.rank() == 1) {
      fail(ErrorCode::kIo, "disk full");
    }
    for (int i = 0; i < 3; ++i) {
      mine.barrier();
    }
  });
  EXPECT_EQ(results[1].exit_code, code_of(ErrorCode::kIo)) << results[1].output;
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, code_of(ErrorCode::kPeerFailed)) << results[rank].output;
    EXPECT_THAT(results[rank].output, HasSubstr("first failure: rank 1: an exception ended it"));
  }
}

TEST(Meeting, Fault132_ARankThatGoesOnWhenAllHaveLeftSaysSo) {
  // Its sends meet closed sockets: SIGPIPE, at its default, would end it without a word.
  const auto results = test::run_processes(
      2, "late",
      [](int rank) {
        ::signal(SIGPIPE, SIG_DFL);
        try {
          const World world = init({.transport = "gloo"});
          std::vector<std::unique_ptr<Work>> works;
          std::vector<at::Tensor> wholes;
          const at::Tensor slice = at::ones({5000});
          const auto start = [&] {
            wholes.push_back(at::empty({10000}));
            works.push_back(world.transport().all_gather(wholes.back(), slice, {.name = "late"}));
          };
          world.barrier();
          // Sends that the peer is ready for only after this process has
          // stopped.
          for (int i = 0; i < 4 && rank == 0; ++i) {
            start();
          }
          if (rank == 0) {
            const pid_t stopped = ::getpid();
            if (::fork() == 0) {
              ::sleep(4);
              ::kill(stopped, SIGCONT);
              std::_Exit(0);
            }
            ::raise(SIGSTOP);
          }
          ::usleep(rank == 1 ? 300000 : 0);
          for (int i = 0; i < 4 && rank == 1; ++i) {
            start();
          }
          for (const auto& work : works) {
            work->wait();
          }
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::fflush(nullptr);
          std::_Exit(10 + static_cast<int>(error.code()));
        }
      },
      {.limit = seconds(20), .environment = {{"FSDP_TIMEOUT", "1"}}});
  EXPECT_EQ(results[1].exit_code, code_of(ErrorCode::kTimeout)) << results[1].output;
  EXPECT_THAT(results[0].exit_code,
              testing::AnyOf(code_of(ErrorCode::kTimeout), code_of(ErrorCode::kPeerFailed)))
      << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("in \"late\" on rank 0"));
}

/// The process of a rank. @collective
pid_t process_of(const comm::Link& group, int rank) {
  at::Tensor all = at::zeros({group.size()}, at::kLong);
  const at::Tensor own = at::full({1}, static_cast<std::int64_t>(::getpid()), at::kLong);
  group.transport->all_gather(all, own, {.name = "processes"})->wait();
  return static_cast<pid_t>(all[rank].item<std::int64_t>());
}

bool stands_still(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.find(") T ") != std::string::npos;
}

/// Over gloo, rank 0 serves the store by which they meet again.
TEST_P(Processes, RanksRecoverWithRankZeroThatStoodStill) {
  const auto results = run_worlds(GetParam(), 2, [](World world) {
    const comm::Link& group = world.link();
    const pid_t first = process_of(group, 0);
    std::future<void> waking;
    if (world.rank() == 0) {
      std::raise(SIGSTOP);
    } else {
      while (!stands_still(first)) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      group.job->set_timeout(milliseconds(300));
    }
    EXPECT_NE(test::error_of([&] { world.barrier(); }), "no error");
    if (world.rank() == 1) {
      group.job->set_timeout(seconds(20));
      waking = std::async(std::launch::async, [first] {
        std::this_thread::sleep_for(milliseconds(1500));
        ::kill(first, SIGCONT);
      });
    }
    group.job->recover();
    world.barrier();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(Meeting, Fault132_ARankThatNeverJoinsIsNamed) {
  const auto results =
      test::run_processes(3, "join",
                          [](int rank) {
                            if (rank == 1) {
                              std::_Exit(0);
                            }
                            try {
                              init();
                            } catch (const Error& error) {
                              std::fprintf(stderr, "%s\n", error.what());
                              std::fflush(nullptr);
                              std::_Exit(10 + static_cast<int>(error.code()));
                            }
                          },
                          {.limit = seconds(20), .environment = {{"FSDP_TIMEOUT", "1.5"}}});
  EXPECT_EQ(results[0].exit_code, code_of(ErrorCode::kTimeout)) << results[0].output;
  EXPECT_THAT(results[0].output, AllOf(HasSubstr("waiting for rank 1"), HasSubstr("127.0.0.1:")));
}

TEST(Meeting, Fault127_TwoProcessesThatClaimOneRankBothFail) {
  const auto results =
      test::run_processes(3, "claim",
                          [](int rank) {
                            if (rank == 2) {
                              ::setenv("RANK", "1", 1);
                            }
                            try {
                              init();
                            } catch (const Error& error) {
                              std::fprintf(stderr, "%s\n", error.what());
                              std::fflush(nullptr);
                              std::_Exit(10 + static_cast<int>(error.code()));
                            }
                          },
                          {.limit = seconds(20), .environment = {{"FSDP_TIMEOUT", "3"}}});
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, code_of(ErrorCode::kInvalidArgument))
        << results[rank].output;
    EXPECT_THAT(results[rank].output, HasSubstr("RANK is '1' in 2 processes"));
  }
}

}  // namespace
}  // namespace fsdp
