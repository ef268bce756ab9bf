// SPDX-License-Identifier: Apache-2.0
/// Decisions that all ranks take alike, and means over ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/agreement.hpp"
#include "fsdp/comm/mean.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Agreement, StopEndsAllWithTheFirstFillWithTheLast) {
  on_all_transports(3, 20, [](World world) {
    const int batches = 2 + world.rank();
    const auto steps = [&](Uneven mode) {
      std::vector<int> active;
      for (int step = 0;; ++step) {
        const bool has_batch = step < batches;
        const StepAgreement found = agree_on_step(world, has_batch, mode);
        EXPECT_EQ(found.weight, has_batch ? 1 : 0);
        active.push_back(found.active);
        if (!found.go_on) {
          return active;
        }
      }
    };
    EXPECT_EQ(steps(Uneven::kStop), (std::vector<int>{3, 3, 2}));
    EXPECT_EQ(steps(Uneven::kFill), (std::vector<int>{3, 3, 2, 1, 0}));
  });
}

TEST(Agreement, RanksThatAskForDifferentModesAreTold) {
  on_all_transports(2, 20, [](World world) {
    const Uneven mode = world.rank() == 0 ? Uneven::kStop : Uneven::kFill;
    EXPECT_THAT(error_of([&] { agree_on_step(world, true, mode); }),
                AllOf(HasSubstr("[mismatch]"), HasSubstr("agree: stop"), HasSubstr("agree: fill")));
  });
}

TEST(Mean, Fault122_TheMeanIsThatOfAllRanksByWeight) {
  on_all_transports(2, 20, [](World world) {
    const bool first = world.rank() == 0;
    EXPECT_EQ(mean_over_ranks(world, first ? 1 : 5, first ? 1 : 3).get(), 4.0);
    EXPECT_EQ(mean_over_ranks(world, first ? 1 : 5).get(), 3.0);
    // Who has nothing may have anything.
    PendingMean mean =
        mean_over_ranks(world, first ? std::numeric_limits<double>::quiet_NaN() : 5, first ? 0 : 3);
    EXPECT_EQ(mean.get(), 5.0);
    EXPECT_EQ(mean.total_weight(), 3.0);
  });
}

TEST(Mean, Fault122_ThatOfTheStepBeforeIsFetchedWhileOthersRun) {
  on_all_transports(3, 20, [](World world) {
    PendingMean previous = mean_over_ranks(world, world.rank());
    for (int step = 1; step < 5; ++step) {
      PendingMean mean = mean_over_ranks(world, world.rank() + 10.0 * step);
      world.barrier();
      EXPECT_EQ(previous.get(), 1 + 10.0 * (step - 1));
      EXPECT_EQ(previous.get(), 1 + 10.0 * (step - 1));
      previous = std::move(mean);
    }
    previous = mean_over_ranks(world, 1);  // what was under way is not lost to the group
    world.barrier();
    EXPECT_EQ(previous.get(), 1);
    {
      mean_over_ranks(world, 2);
    }
    world.barrier();
  });
}

TEST(Mean, WrongWeightsAreRefusedOnAllRanks) {
  on_all_transports(2, 20, [](World world) {
    const double wrong = world.rank() == 0 ? 1 : -2;
    EXPECT_THAT(error_of([&] { mean_over_ranks(world, 1, wrong, "tokens").get(); }),
                AllOf(HasSubstr("[invalid argument]"), HasSubstr("[tokens] rank 1 counts -2")));
    EXPECT_THAT(error_of([&] { mean_over_ranks(world, 1, 0).get(); }),
                HasSubstr("all 2 ranks together count 0"));
    world.barrier();
  });
}

TEST(SharedUniform, IsUniformAndDependsOnAllArguments) {
  constexpr int kDraws = 40000;
  double sum = 0, squares = 0, product = 0, last = 0;
  std::set<double> distinct;
  for (int i = 0; i < kDraws; ++i) {
    const double drawn = shared_uniform(7, static_cast<std::uint64_t>(i / 8), i % 8);
    ASSERT_GE(drawn, 0);
    ASSERT_LT(drawn, 1);
    distinct.insert(drawn);
    sum += drawn;
    squares += drawn * drawn;
    product += drawn * last;
    last = drawn;
  }
  EXPECT_EQ(distinct.size(), static_cast<std::size_t>(kDraws));
  // Five standard deviations of the means of u, u^2 and u*u'.
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * 0.289 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * 0.298 / std::sqrt(kDraws));
  EXPECT_NEAR(product / kDraws, 1.0 / 4, 5 * 0.22 / std::sqrt(kDraws));
  EXPECT_NE(shared_uniform(1, 2, 3), shared_uniform(2, 2, 3));
  EXPECT_NE(shared_uniform(1, 2, 3), shared_uniform(1, 3, 2));
  // The numbers are part of the promise: a run that resumes with a later version draws the same.
  EXPECT_EQ(shared_uniform(1, 2, 3), 7334193161813100.0 / 9007199254740992.0);
}

}  // namespace
}  // namespace fsdp::test
