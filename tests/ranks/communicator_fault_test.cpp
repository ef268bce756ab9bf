// SPDX-License-Identifier: Apache-2.0
/// What happens when ranks disagree, fail, stall or leave. No rank may hang and no process may be
/// aborted by the transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using comm::Communicator;
using comm::Work;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using Start = std::function<std::unique_ptr<Work>(Communicator&)>;

/// Ends the test when a failed rank's error is not of the expected code.
std::string expect_error(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.text();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// ---- ranks that meet in different collectives -------------------------------------------------

class Mismatch : public testing::TestWithParam<std::string> {
 protected:
  /// Rank 1 starts another collective than the others. All ranks must report the same text; then
  /// they must be able to go on.
  std::string expect_mismatch(const Start& start, const Start& start_on_rank_1) {
    constexpr int kRanks = 3;
    std::array<std::string, kRanks> texts;
    test::run_ranks(GetParam(), kRanks, [&](Communicator& group) {
      texts[static_cast<std::size_t>(group.rank())] = expect_error(ErrorCode::kMismatch, [&] {
        (group.rank() == 1 ? start_on_rank_1 : start)(group)->wait();
      });
      at::Tensor sum = at::ones({3});
      group.all_reduce(sum, {.name = "after"});
      EXPECT_TRUE(sum.eq(kRanks).all().item<bool>());
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    return texts[0];
  }
};

Start gather(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name) {
  return [=](Communicator& group) {
    return group.all_gather(at::zeros({count * group.size()}, dtype), at::zeros({count}, dtype),
                            {.unit = unit, .name = name});
  };
}

Start reduce(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name) {
  return [=](Communicator& group) {
    return group.reduce_scatter(at::zeros({count}, dtype), at::zeros({count * group.size()}, dtype),
                                {}, {.unit = unit, .name = name});
  };
}

TEST_P(Mismatch, Fault004_EqualSizesOfDifferentUnitsNameBothUnits) {
  EXPECT_THAT(expect_mismatch(gather(16, at::kFloat, 0, "h.0"), gather(16, at::kFloat, 1, "h.1")),
              AllOf(HasSubstr("all-gather #"), HasSubstr("of unit \"h.0\""),
                    HasSubstr("of unit \"h.1\""), HasSubstr("on rank 1")));
}

TEST_P(Mismatch, Fault005_DifferentSizesAreAnErrorOnAllRanks) {
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{200000}}) {
    EXPECT_THAT(
        expect_mismatch(gather(100000, at::kFloat, 0, "w"), gather(count, at::kFloat, 0, "w")),
        AllOf(HasSubstr("400000 bytes"), HasSubstr(std::to_string(count * 4) + " bytes"),
              HasSubstr("different sizes")));
  }
}

TEST_P(Mismatch, Fault005_DifferentSizesOfAReduceScatterAreAnErrorOnAllRanks) {
  EXPECT_THAT(expect_mismatch(reduce(7, at::kFloat, 0, "w"), reduce(9000, at::kFloat, 0, "w")),
              AllOf(HasSubstr("28 bytes"), HasSubstr("36000 bytes")));
}

TEST_P(Mismatch, Fault006_EqualSizesOfDifferentDtypesNameBothDtypes) {
  EXPECT_THAT(expect_mismatch(gather(8, at::kFloat, 0, "w"), gather(8, at::kInt, 0, "w")),
              AllOf(HasSubstr("Float"), HasSubstr("Int"), HasSubstr("dtypes")));
}

TEST_P(Mismatch, Fault007_ACollectiveOnOneRankOnlyNamesTheCall) {
  const Start agree = [](Communicator& group) { return group.agree({.name = "grad_norm"}); };
  EXPECT_THAT(expect_mismatch(gather(8, at::kFloat, 2, "h.2"), agree),
              AllOf(HasSubstr("agree #"), HasSubstr("in \"grad_norm\""), HasSubstr("h.2"),
                    HasSubstr("full_parameters()")));
}

TEST_P(Mismatch, DifferentCollectivesOfOneUnitNameBoth) {
  EXPECT_THAT(expect_mismatch(gather(8, at::kFloat, 0, "h.0"), reduce(8, at::kFloat, 0, "h.0")),
              AllOf(HasSubstr("all-gather"), HasSubstr("reduce-scatter")));
}

TEST_P(Mismatch, Fault009_TheOldestThatDiffersIsTheCauseInWhateverOrderRanksWait) {
  if (GetParam() == "c10d") {
    GTEST_SKIP() << "compares as it starts";
  }
  constexpr int kRanks = 3;
  std::array<std::string, kRanks> texts;
  test::run_ranks(GetParam(), kRanks, [&](Communicator& group) {
    const bool is_odd = group.rank() == 1;
    auto first = gather(8, at::kFloat, 0, is_odd ? "h.9" : "h.0")(group);
    auto second = reduce(8, at::kFloat, 1, is_odd ? "h.8" : "h.1")(group);
    texts[static_cast<std::size_t>(group.rank())] =
        expect_error(ErrorCode::kMismatch, [&] { (group.rank() == 2 ? second : first)->wait(); });
    first.reset();
    second.reset();
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("h.0"), HasSubstr("h.9")));
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST_P(Mismatch, DifferentRootsNameBoth) {
  const auto from = [](int root) -> Start {
    return [root](Communicator& group) {
      return group.broadcast(at::zeros({4}), root, {.name = "b"});
    };
  };
  EXPECT_THAT(expect_mismatch(from(0), from(2)),
              testing::ContainsRegex("different roots .(0 and 2|2 and 0)"));
}

INSTANTIATE_TEST_SUITE_P(Transports, Mismatch, testing::Values("threads", "gloo", "shm", "c10d"),
                         [](const auto& tested) { return tested.param; });

// ---- ranks that fail, stall or leave, as threads ----------------------------------------------

class Absence : public testing::TestWithParam<std::string> {};

TEST_P(Absence, Fault009_AMissingRankIsNamedWithUnitAndNumber) {
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    test::run_ranks(GetParam(), 4, [&](Communicator& group) {
      group.agree({.name = "warm-up"})->wait();
      group.set_timeout(milliseconds(500));
      if (group.rank() == 2) {
        std::this_thread::sleep_for(seconds(2));
        return;
      }
      try {
        gather(8, at::kFloat, 4, "h.4")(group)->wait();
        ADD_FAILURE() << "a collective without rank 2 was completed";
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed);
        std::lock_guard lock(mutex);
        texts.push_back(error.text());
      }
    });
  } catch (const Error&) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  ASSERT_EQ(texts.size(), 3U);
  for (const std::string& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("missing: 2"), HasSubstr("unit \"h.4\""), HasSubstr("#")));
  }
}

TEST_P(Absence, ADroppedCollectiveEndsTheOthersWaits) {
  const auto start = std::chrono::steady_clock::now();
  test::run_ranks(GetParam(), 2, [&](Communicator& group) {
    group.set_timeout(seconds(3));
    auto work = gather(1000, at::kFloat, 0, "h.0")(group);
    if (group.rank() == 0) {
      work.reset();
      std::this_thread::sleep_for(milliseconds(1500));
      return;
    }
    try {
      work->wait();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(6));
}

INSTANTIATE_TEST_SUITE_P(Transports, Absence, testing::Values("threads", "gloo", "shm"),
                         [](const auto& tested) { return tested.param; });

TEST(RunThreads, RethrowsTheFirstFailureAndEndsTheOthersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  std::array<std::string, 3> texts;
  const std::string text = expect_error(ErrorCode::kIo, [&] {
    run_threads(3, [&](World world) {
      if (world.rank() == 1) {
        fail(ErrorCode::kIo, "disk full");
      }
      texts[static_cast<std::size_t>(world.rank())] =
          expect_error(ErrorCode::kPeerFailed, [&] { world.barrier(); });
    });
  });
  EXPECT_EQ(text, "rank 1: disk full");
  EXPECT_THAT(texts[0], HasSubstr("rank 1 failed first: [i/o] disk full"));
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2));
}

TEST(RunThreads, PassesOtherExceptionsOn) {
  EXPECT_THROW(run_threads(2,
                           [](World world) {
                             if (world.rank() == 0) {
                               throw std::out_of_range("index");
                             }
                             world.barrier();
                           }),
               std::out_of_range);
}

TEST(RunThreads, ADropDuringUnwindingLeavesTheRealCauseToTheOthers) {
  std::string peer;
  expect_error(ErrorCode::kIo, [&] {
    run_threads(2, [&](World world) {
      auto work = gather(1000, at::kFloat, 0, "h.0")(world.communicator());
      if (world.rank() == 0) {
        fail(ErrorCode::kIo, "disk full");
      }
      peer = expect_error(ErrorCode::kPeerFailed, [&] { work->wait(); });
    });
  });
  EXPECT_THAT(peer, HasSubstr("rank 0 failed first: [i/o] disk full"));
}

// ---- the same between processes ---------------------------------------------------------------

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

INSTANTIATE_TEST_SUITE_P(Transports, Processes, testing::Values("gloo", "shm"),
                         [](const auto& tested) { return tested.param; });

int code_of(ErrorCode code) { return 10 + static_cast<int>(code); }

TEST_P(Processes, TwoAndThreeRanksGatherReduceAndShareMemory) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    Communicator& group = world.communicator();
    EXPECT_EQ(group.transport(), GetParam());
    EXPECT_EQ(world.local_rank(), world.rank());
    at::Tensor dst = at::zeros({3 * 70001});
    group.all_gather(dst, at::full({70001}, static_cast<float>(world.rank())), {.unit = 0})->wait();
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(dst.narrow(0, r * 70001, 70001).eq(r).all().item<bool>());
    }
    at::Tensor sum = at::zeros({70001});
    group.reduce_scatter(sum, dst, {.divisor = 3}, {.unit = 0})->wait();
    EXPECT_TRUE(sum.eq(world.rank()).all().item<bool>());
    const at::Tensor shared = group.shared_memory(1 << 20, {.name = "weights"});
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
    world.communicator().all_reduce(sum, {.name = "norm"});
    EXPECT_TRUE(sum.eq(3).all().item<bool>());
    world.barrier();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_P(Processes, Fault005_DifferentSizesEndBothRanksWithAnErrorNotAnAbort) {
  const auto results = run_worlds(GetParam(), 2, [](World world) {
    gather(world.rank() == 0 ? 16 : 20, at::kFloat, 0, "fc")(world.communicator())->wait();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, code_of(ErrorCode::kMismatch)) << result.output;
    EXPECT_NE(result.exit_code, kAbort);
    EXPECT_THAT(result.output, AllOf(HasSubstr("64 bytes"), HasSubstr("80 bytes")));
  }
}

TEST_P(Processes, Fault006_DifferentDtypesEndBothRanksWithAnErrorNotMixedBits) {
  const auto results = run_worlds(GetParam(), 2, [](World world) {
    gather(8, world.rank() == 0 ? at::kFloat : at::kInt, 0, "fc")(world.communicator())->wait();
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
    gather(100000, at::kFloat, 5, "h.5")(world.communicator())->wait();
  });
  EXPECT_EQ(results[1].exit_code, 3);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, code_of(ErrorCode::kPeerFailed)) << results[rank].output;
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("h.5"), HasSubstr("rank 1")));
    EXPECT_LT(results[rank].duration, seconds(10));
  }
}

TEST_P(Processes, Fault009_ASleepingRankIsNamedByAllOthers) {
  const auto results = run_worlds(GetParam(), 3, [](World world) {
    world.barrier();
    world.communicator().set_timeout(milliseconds(800));
    if (world.rank() == 2) {
      std::this_thread::sleep_for(seconds(4));
      std::_Exit(0);
    }
    gather(8, at::kFloat, 5, "h.5")(world.communicator())->wait();
  });
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(results[rank].exit_code,
                testing::AnyOf(code_of(ErrorCode::kTimeout), code_of(ErrorCode::kPeerFailed)));
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("missing: 2"), HasSubstr("h.5")));
    EXPECT_LT(results[rank].duration, seconds(6));
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
  const auto results =
      test::run_processes(2, "late",
                          [](int rank) {
                            ::signal(SIGPIPE, SIG_DFL);
                            try {
                              const World world = init({.transport = "gloo"});
                              std::vector<std::unique_ptr<Work>> works;
                              std::vector<at::Tensor> wholes;
                              const at::Tensor slice = at::ones({5000});
                              const auto start = [&] {
                                wholes.push_back(at::empty({10000}));
                                works.push_back(world.communicator().all_gather(
                                    wholes.back(), slice, {.name = "late"}));
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
