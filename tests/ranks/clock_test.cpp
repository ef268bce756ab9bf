// SPDX-License-Identifier: Apache-2.0
#include "comm/clock.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "fsdp/comm/world.hpp"

namespace fsdp {
namespace {

using comm::ClockOffset;
using comm::Exchanges;
using comm::offset_between;

/// What two ranks note whose clocks differ by `offset`: rank 0's is ahead. Both leave `delay` after
/// the later one entered.
std::pair<Exchanges, Exchanges> exchanges(std::int64_t offset, std::int64_t skew,
                                          std::int64_t delay) {
  Exchanges root, own;
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::int64_t root_enters = 1000 * i + (i % 2 == 0 ? skew : 0);
    const std::int64_t own_enters = 1000 * i + (i % 2 == 0 ? 0 : skew);
    const std::int64_t leaves = std::max(root_enters, own_enters) + delay;
    root.entered_ns.push_back(root_enters + offset);
    root.left_ns.push_back(leaves + offset);
    own.entered_ns.push_back(own_enters);
    own.left_ns.push_back(leaves);
  }
  return {root, own};
}

TEST(Clock, TheTrueOffsetIsWithinTheError) {
  for (const std::int64_t offset : {-7'000'000'000LL, -5'000LL, 5'000LL, 123'456'789LL}) {
    for (const std::int64_t skew : {0LL, 90LL, 400LL}) {
      const auto [root, own] = exchanges(offset, skew, /*delay=*/30);
      const ClockOffset found = offset_between(root, own);
      EXPECT_LE(std::abs(found.offset_ns - offset), found.error_ns);
      EXPECT_LE(found.error_ns, 31 + skew);
    }
  }
}

TEST(Clock, OneClockIsNotMoved) {
  const auto [root, own] = exchanges(0, 100, 30);
  EXPECT_EQ(offset_between(root, own).offset_ns, 0);
}

TEST(Clock, RanksOfOneProcessReadOneClock) {
  run_threads(3, [](const World& world) {
    const ClockOffset found = comm::clock_offset(world.job());
    EXPECT_EQ(found.offset_ns, 0);
    EXPECT_LT(found.error_ns, 1'000'000'000);
  });
}

}  // namespace
}  // namespace fsdp
