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
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using comm::Work;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::gather;
using test::reduce;
using test::Start;
using testing::AllOf;
using testing::HasSubstr;

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
    test::run_ranks(GetParam(), kRanks, [&](const comm::Link& group) {
      texts[static_cast<std::size_t>(group.rank())] = expect_error(ErrorCode::kMismatch, [&] {
        (group.rank() == 1 ? start_on_rank_1 : start)(group)->wait();
      });
      at::Tensor sum = at::ones({3});
      group.transport->all_reduce(sum, {.name = "after"});
      EXPECT_TRUE(sum.eq(kRanks).all().item<bool>());
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    return texts[0];
  }
};

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
  const Start agree = [](const comm::Link& group) {
    return group.transport->publish({.name = "grad_norm"});
  };
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
  test::run_ranks(GetParam(), kRanks, [&](const comm::Link& group) {
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
    return [root](const comm::Link& group) {
      return group.transport->broadcast(at::zeros({4}), root, {.name = "b"});
    };
  };
  EXPECT_THAT(expect_mismatch(from(0), from(2)),
              testing::ContainsRegex("different roots .(0 and 2|2 and 0)"));
}

INSTANTIATE_TEST_SUITE_P(Transports, Mismatch, testing::ValuesIn(test::transports({.ranks = {3}})),
                         [](const auto& tested) { return tested.param; });

// ---- ranks that fail, stall or leave, as threads ----------------------------------------------

class Absence : public testing::TestWithParam<std::string> {};

TEST_P(Absence, Fault009_AMissingRankIsNamedWithUnitAndNumber) {
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    test::run_ranks(GetParam(), 4, [&](const comm::Link& group) {
      group.job->barrier({.name = "warm-up"});
      test::meet();
      group.job->set_timeout(milliseconds(500));
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
  test::run_ranks(GetParam(), 2, [&](const comm::Link& group) {
    group.job->set_timeout(seconds(3));
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

INSTANTIATE_TEST_SUITE_P(Transports, Absence,
                         testing::ValuesIn(test::transports({.ranks = {2, 4}, .recovers = true})),
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
      auto work = gather(1000, at::kFloat, 0, "h.0")(world.link());
      if (world.rank() == 0) {
        fail(ErrorCode::kIo, "disk full");
      }
      peer = expect_error(ErrorCode::kPeerFailed, [&] { work->wait(); });
    });
  });
  EXPECT_THAT(peer, HasSubstr("rank 0 failed first: [i/o] disk full"));
}

}  // namespace
}  // namespace fsdp
