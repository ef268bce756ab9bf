// SPDX-License-Identifier: Apache-2.0
/// What a transport costs once it runs: no tensor memory beyond what was reserved.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "ranks/transport_harness.hpp"

namespace fsdp {
namespace {

/// Counts what the CPU allocator hands out on this thread.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void*, std::int64_t size, size_t, size_t, c10::Device) override {
    bytes_ += size > 0 ? size : 0;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

class SteadyState : public testing::TestWithParam<std::string> {};

TEST_P(SteadyState, ReservedCollectivesAllocateNoTensorMemory) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    constexpr std::int64_t kCount = 4099;
    constexpr int kInFlight = 2;
    at::Tensor whole = at::ones({kCount * 3});
    at::Tensor slice = at::ones({kCount});
    at::Tensor sums[kInFlight] = {at::zeros({kCount}), at::zeros({kCount})};
    const std::int64_t reserved =
        group.transport->reserve_staging(static_cast<std::int64_t>(whole.nbytes()), kInFlight);
    // Over shared memory, one staging area of fixed size serves all.
    EXPECT_EQ(reserved, group.transport->traits().name == "gloo"  ? kInFlight * 2 * kCount * 4
                        : group.transport->traits().name == "shm" ? 512 * 1024
                                                                  : 0);
    const auto counter = std::make_shared<AllocationCounter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    for (int step = 0; step < 5; ++step) {
      auto first = group.transport->reduce_scatter(sums[0], whole, {.divisor = 3}, {.unit = 0});
      auto second =
          group.transport->reduce_scatter(sums[1], whole, {.accumulate = true}, {.unit = 1});
      first->wait();
      second->wait();
      group.transport->all_gather(whole, slice, {.unit = 0})->wait();
      group.transport->broadcast(slice, 0, {.unit = 0})->wait();
      group.job->barrier({.name = "step"});
    }
    EXPECT_EQ(counter->bytes(), 0);
    EXPECT_EQ(
        group.transport->reserve_staging(static_cast<std::int64_t>(whole.nbytes()), kInFlight),
        reserved);
  });
}

TEST_P(SteadyState, MoreInFlightThanReservedStillWorks) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& group) {
    group.transport->reserve_staging(64, 1);
    std::vector<at::Tensor> sums;
    std::vector<std::unique_ptr<comm::Work>> works;
    const at::Tensor source = at::ones({2 * 1000});
    for (int i = 0; i < 5; ++i) {
      sums.push_back(at::zeros({1000}));
      works.push_back(group.transport->reduce_scatter(sums.back(), source, {}, {.unit = i}));
    }
    for (auto& work : works) {
      work->wait();
    }
    for (const at::Tensor& sum : sums) {
      EXPECT_TRUE(sum.eq(2).all().item<bool>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, SteadyState,
                         testing::ValuesIn(test::transports({.ranks = {2, 3}, .recovers = true})),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace fsdp
