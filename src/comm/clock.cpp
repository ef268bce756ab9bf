// SPDX-License-Identifier: Apache-2.0
#include "comm/clock.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace fsdp::comm {
namespace {

constexpr std::size_t kExchanges = 20;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

ClockOffset offset_between(const Exchanges& root, const Exchanges& own) {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < root.entered_ns.size(); ++i) {
    low = std::max(low, root.entered_ns[i] - own.left_ns[i]);
    high = std::min(high, root.left_ns[i] - own.entered_ns[i]);
  }
  if (low <= 0 && 0 <= high) {
    return {.offset_ns = 0, .error_ns = std::max(-low, high)};
  }
  return {.offset_ns = low + (high - low) / 2, .error_ns = (high - low) / 2 + 1};
}

ClockOffset clock_offset(Job& job) {
  std::vector<std::int64_t> times;  // entered, left, entered, ...
  for (std::size_t i = 0; i < kExchanges; ++i) {
    times.push_back(now_ns());
    gather_values(job, static_cast<std::int64_t>(i), "compare clocks");
    times.push_back(now_ns());
  }
  const std::vector<std::int64_t> all = gather_values(job, times, "compare clocks");
  const auto exchanges_of = [&](std::size_t rank) {
    Exchanges exchanges;
    for (std::size_t i = 0; i < kExchanges; ++i) {
      exchanges.entered_ns.push_back(all[rank * times.size() + 2 * i]);
      exchanges.left_ns.push_back(all[rank * times.size() + 2 * i + 1]);
    }
    return exchanges;
  };
  if (job.rank() == 0) {
    return {};
  }
  return offset_between(exchanges_of(0), exchanges_of(static_cast<std::size_t>(job.rank())));
}

}  // namespace fsdp::comm
