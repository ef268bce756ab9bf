// SPDX-License-Identifier: Apache-2.0
/// Sums: of low precision in float32, of large buffers in bounded memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <string>

#include "fsdp/comm/transport.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using testing::HasSubstr;

class LowPrecision : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, LowPrecision,
                         testing::ValuesIn(test::transports({.ranks = {3, 8}})),
                         [](const auto& tested) { return tested.param; });

TEST_P(LowPrecision, Fault026_TheSumOfBfloat16IsThatOfFloat32) {
  test::run_ranks(GetParam(), 8, [](const comm::Link& group) {
    const at::Tensor source =
        at::full({8 * 3}, group.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);  // 256 + 1 is 256 there
    at::Tensor mean = at::zeros({3});
    group.transport->reduce_scatter(mean, source, {.divisor = 8}, {.unit = 0})->wait();
    EXPECT_TRUE(mean.eq(32.875).all().item<bool>()) << mean;
    group.transport->reduce_scatter(mean, source, {.divisor = 8, .accumulate = true}, {.unit = 0})
        ->wait();
    EXPECT_TRUE(mean.eq(65.75).all().item<bool>()) << mean;
  });
}

TEST_P(LowPrecision, Fault025_TheSumOfFloat16NeitherOverflowsNorVanishes) {
  test::run_ranks(GetParam(), 8, [](const comm::Link& group) {
    at::Tensor mean = at::zeros({2});
    group.transport->reduce_scatter(mean, at::full({16}, 30000.0, at::kHalf), {.divisor = 8}, {})
        ->wait();
    EXPECT_TRUE(mean.eq(30000).all().item<bool>()) << mean;
    const at::Tensor tiny = at::full({16}, 6e-8, at::kHalf);
    group.transport->reduce_scatter(mean, tiny, {.divisor = 8}, {})->wait();
    EXPECT_TRUE(mean.eq(tiny[0].to(at::kFloat)).all().item<bool>()) << mean;
    EXPECT_GT(mean[0].item<float>(), 0);
  });
}

TEST_P(LowPrecision, LandsInFloat32FromAnyMemoryInAnyNumber) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{13}, std::int64_t{400001}}) {
      for (const bool is_private : {true, false}) {
        const auto values = [&](int rank) {
          return at::sin(at::arange(3 * count, at::kDouble) * 0.37 + rank).to(at::kBFloat16);
        };
        at::Tensor source = is_private ? at::empty({3 * count}, at::kBFloat16)
                                       : group.transport->buffer(6 * count).view(at::kBFloat16);
        source.copy_(values(group.rank()));
        at::Tensor expected = at::zeros({3 * count});
        for (int rank = 0; rank < 3; ++rank) {
          expected = rank == 0 ? values(0).to(at::kFloat) : expected + values(rank);
        }
        at::Tensor sum = at::zeros({count});
        group.transport->reduce_scatter(sum, source, {}, {.unit = 2})->wait();
        const at::Tensor mine = expected.narrow(0, group.rank() * count, count);
        ASSERT_TRUE(group.transport->traits().name == "c10d" ? at::allclose(sum, mine, 1e-6, 1e-6)
                                                             : at::equal(sum, mine))
            << "count " << count << " private " << is_private;
      }
    }
    EXPECT_THAT(test::error_of([&] {
                  group.transport->reduce_scatter(at::zeros({1}, at::kDouble), at::zeros({3}), {},
                                                  {});
                }),
                HasSubstr("dst is Double but src is Float"));
    group.job->barrier({});
  });
}

// ---- all-reduce ---------------------------------------------------------------------------------

at::Tensor wave(int rank, std::int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::kFloat).remainder_(1009).mul_(0.37 + rank).to(dtype);
}

class AllReduce : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, AllReduce,
                         testing::ValuesIn(test::transports({.ranks = {3, 4}})),
                         [](const auto& tested) { return tested.param; });

TEST_P(AllReduce, SumsInRankOrderWhateverTheSize) {
  // Around the limits: small, no multiple of the ranks, several pieces.
  const std::int64_t piece = comm::Transport::kAllReducePieceBytes / 4;
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1025}, 3 * piece + 70000}) {
    at::Tensor sum = wave(0, count, at::kFloat);
    for (int rank = 1; rank < 3; ++rank) {
      sum = sum + wave(rank, count, at::kFloat);
    }
    sum = sum / at::full({}, 3.0);
    test::run_ranks(GetParam(), 3, [&](const comm::Link& group) {
      at::Tensor first = wave(group.rank(), count, at::kFloat);
      at::Tensor second = first.clone();
      auto one = group.transport->start_all_reduce(first, 3, {.unit = 0});
      auto two = group.transport->start_all_reduce(second, 3, {.unit = 1});
      one->wait();
      two->wait();
      EXPECT_TRUE(group.transport->traits().name == "c10d" ? at::allclose(first, sum, 1e-5, 1e-5)
                                                           : at::equal(first, sum))
          << count;
      EXPECT_TRUE(at::equal(first, second));
    });
  }
}

TEST_P(AllReduce, GivesAllRanksTheSameBitsOfLowPrecision) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    at::Tensor buffer = wave(group.rank(), 5001, at::kBFloat16);
    group.transport->all_reduce(buffer, {.name = "sum"});
    at::Tensor all = at::empty({3 * 5001}, at::kBFloat16);
    group.transport->all_gather(all, buffer, {.name = "compare"})->wait();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(at::equal(all.narrow(0, rank * 5001, 5001), buffer));
    }
  });
}

/// The most that this thread held of the CPU allocator's memory, beyond what it held before.
class PeakCounter : public c10::MemoryReportingInfoBase {
 public:
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void*, std::int64_t size, size_t, size_t, c10::Device) override {
    held_ += size;
    peak_ = std::max(peak_, held_);
  }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

TEST_P(AllReduce, OfALargeBufferNeedsMemoryOfPiecesOnly) {
  if (GetParam() == "c10d") {
    GTEST_SKIP() << "what a backend stages is its own affair";
  }
  test::run_ranks(GetParam(), 4, [](const comm::Link& group) {
    const std::int64_t bytes = 5 * comm::Transport::kAllReducePieceBytes;
    at::Tensor buffer = at::ones({bytes / 4});
    const auto counter = std::make_shared<PeakCounter>();
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
      group.transport->start_all_reduce(buffer, 4, {.unit = 0})->wait();
    }
    EXPECT_LE(counter->peak(), 2 * comm::Transport::kAllReducePieceBytes);
    EXPECT_TRUE(buffer.eq(1).all().item<bool>());
    // With that staging reserved, nothing.
    group.transport->reserve_staging(comm::Transport::kAllReducePieceBytes, 2);
    const auto steady = std::make_shared<PeakCounter>();
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, steady);
      group.transport->start_all_reduce(buffer, 4, {.unit = 0})->wait();
    }
    EXPECT_EQ(steady->peak(), 0);
  });
}

}  // namespace
}  // namespace fsdp
