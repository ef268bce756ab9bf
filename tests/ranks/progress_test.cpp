// SPDX-License-Identifier: Apache-2.0
/// The thread that runs the steps of collectives, and what is seen of it: the collectives of two
/// levels go on while nobody waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/gloo/progress.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using comm::detail::Clock;
using comm::detail::kNoDeadline;
using comm::detail::Progress;
using std::chrono::seconds;

Clock::time_point soon() { return Clock::now() + seconds(20); }

/// As a step that waits for something that never comes would do.
void wait_for_deadline(const Progress& progress) {
  while (Clock::now() < progress.deadline().load()) {
    std::this_thread::yield();
  }
}

TEST(Progress, RunsStepsInOrderAndTellsEachItsError) {
  std::vector<int> order;
  Progress progress;
  const auto first = progress.start([&] { order.push_back(1); });
  const auto second = progress.start([&] {
    order.push_back(2);
    fail(ErrorCode::kIo, "of the second");
  });
  progress.run([&] { order.push_back(3); }, soon());
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(test::error_of([&] { progress.await(second, soon()); }), "[i/o] of the second");
  EXPECT_EQ(test::error_of([&] { progress.await(first, soon()); }), "no error");
}

TEST(Progress, HasATimeOutOnlyWhileSomebodyAwaits) {
  Progress progress;
  std::promise<void> begun;
  std::atomic<bool> was_free = false;
  const auto endless = progress.start([&] {
    was_free = progress.deadline().load() == kNoDeadline;
    begun.set_value();
    wait_for_deadline(progress);
  });
  // What comes next must not see the time-out of the one before, whoever is faster.
  std::promise<bool> is_free_again;
  const auto next =
      progress.start([&] { is_free_again.set_value(progress.deadline().load() == kNoDeadline); });
  begun.get_future().wait();
  progress.await(endless, Clock::now() + std::chrono::milliseconds(20));
  EXPECT_TRUE(was_free);
  EXPECT_TRUE(is_free_again.get_future().get());  // nobody awaits it yet
  progress.await(next, soon());
}

TEST(Progress, CancelsWhatHasNotBegunAndEndsWhatHas) {
  Progress progress;
  std::promise<void> begun;
  bool has_run = false;
  const auto endless = progress.start([&] {
    begun.set_value();
    wait_for_deadline(progress);
  });
  const auto waiting = progress.start([&] { has_run = true; });
  begun.get_future().wait();
  progress.cancel(waiting);
  progress.cancel(endless);
  progress.await_all(soon());
  EXPECT_FALSE(has_run);
}

TEST(Progress, StopsForGood) {
  Progress progress;
  const auto endless = progress.start([&] { wait_for_deadline(progress); });
  bool has_run = false;
  const auto waiting = progress.start([&] { has_run = true; });
  progress.stop();
  for (const auto& late : {waiting, progress.start([&] { has_run = true; })}) {
    EXPECT_THAT(test::error_of([&] { progress.await(late, soon()); }),
                testing::HasSubstr("[peer failed] the group has recovered"));
  }
  EXPECT_FALSE(has_run);
}

// ---- two levels ---------------------------------------------------------------------------------

using Start = std::function<std::unique_ptr<comm::Work>(const comm::Link&)>;

/// Every rank starts the collective; then one rank waits, and the others do nothing until it is
/// through. It needs data that its own host and the other one make of theirs.
void expect_progress(const Start& start, const std::function<void(const comm::Link&)>& check) {
  constexpr int kRanks = 4;
  for (int waiter = 0; waiter < kRanks; ++waiter) {
    std::promise<void> has_waited;
    const std::shared_future<void> waited = has_waited.get_future().share();
    test::run_ranks("shm+gloo", kRanks, [&](const comm::Link& group) {
      group.job->set_timeout(seconds(10));
      const auto work = start(group);
      if (group.rank() == waiter) {
        const std::string text = test::error_of([&] { work->wait(); });
        has_waited.set_value();
        ASSERT_EQ(text, "no error");
      } else {
        waited.wait();
        work->wait();
      }
      check(group);
    });
  }
}

constexpr std::int64_t kCount = 300'007;  // several pieces of staging

TEST(TwoLevels, Fault092_AGatherGoesOnWhileTheOthersCompute) {
  std::vector<at::Tensor> all(4);
  expect_progress(
      [&](const comm::Link& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        all[rank] = at::full({4 * kCount}, -1.0F);
        return group.transport->all_gather(
            all[rank], at::full({kCount}, 1.0 + group.rank(), at::kFloat), {.unit = 3});
      },
      [&](const comm::Link& group) {
        const at::Tensor& mine = all[static_cast<std::size_t>(group.rank())];
        EXPECT_EQ(mine.view({4, kCount}).select(1, kCount - 1).sum().item<float>(), 10);
        EXPECT_EQ(mine.min().item<float>(), 1);
      });
}

TEST(TwoLevels, Fault092_AReductionGoesOnWhileTheOthersCompute) {
  std::vector<at::Tensor> sums(4);
  expect_progress(
      [&](const comm::Link& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        sums[rank] = at::zeros({kCount});
        return group.transport->reduce_scatter(
            sums[rank], at::full({4 * kCount}, 1.0 + group.rank(), at::kFloat), {}, {.unit = 3});
      },
      [&](const comm::Link& group) {
        EXPECT_TRUE(sums[static_cast<std::size_t>(group.rank())].eq(10).all().item<bool>());
      });
}

TEST(TwoLevels, Fault092_ABroadcastGoesOnWhileTheOthersCompute) {
  std::vector<at::Tensor> buffers(4);
  expect_progress(
      [&](const comm::Link& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        buffers[rank] = at::full({kCount}, static_cast<float>(rank));
        return group.transport->broadcast(buffers[rank], /*root=*/1, {.name = "start"});
      },
      [&](const comm::Link& group) {
        EXPECT_TRUE(buffers[static_cast<std::size_t>(group.rank())].eq(1).all().item<bool>());
      });
}

TEST(TwoLevels, APassedTimeOutEndsNothingThatNobodyWaitsFor) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    group.job->set_timeout(std::chrono::milliseconds(300));
    at::Tensor sum = at::zeros({kCount});
    if (group.rank() == 3) {
      std::this_thread::sleep_for(seconds(1));
    }
    const auto work = group.transport->reduce_scatter(sum, at::ones({4 * kCount}), {}, {.unit = 1});
    if (group.rank() != 3) {
      std::this_thread::sleep_for(seconds(1));
    }
    group.job->set_timeout(seconds(10));
    work->wait();
    EXPECT_TRUE(sum.eq(4).all().item<bool>());
  });
}

TEST(TwoLevels, GroupsOfAHostWorkWhileTheProgressThreadDoes) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    const auto host = group.split(group.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "host");
    for (int round = 0; round < 20; ++round) {
      // Private memory: both go through staging, piece by piece.
      at::Tensor all = at::zeros({4 * kCount});
      at::Tensor of_host = at::zeros({2 * kCount});
      const at::Tensor mine = at::full({kCount}, static_cast<float>(10 * round + group.rank()));
      const auto between = group.transport->all_gather(all, mine, {.unit = round});
      host.transport->all_gather(of_host, -mine, {.unit = round})->wait();
      between->wait();
      const int first = group.rank() / 2 * 2;
      for (int rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(all.narrow(0, rank * kCount, kCount).eq(10 * round + rank).all().item<bool>());
      }
      for (int rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(of_host.narrow(0, rank * kCount, kCount)
                        .eq(-(10 * round + first + rank))
                        .all()
                        .item<bool>());
      }
    }
  });
}

}  // namespace
}  // namespace fsdp
