// SPDX-License-Identifier: Apache-2.0
/// Sleeping on a word in shared memory until another process changes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fsdp::shm {

/// Rung after every change that somebody may wait for.
///
/// A sleeper announces itself, notes the count, checks its condition, and sleeps only while the
/// count is what it noted. Whoever rings changes the condition first, then the count, then looks
/// for sleepers; all four are sequentially consistent, so one of the two sees the other. A sleeper
/// that is killed stays announced and costs a system call a ring, nothing more.
struct Bell {
  alignas(64) std::atomic<std::uint32_t> count{0};
  std::atomic<std::uint32_t> sleepers{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

void ring(Bell& bell);

/// Sleeps while the bell's count is `seen`, at most `limit`; may return early.
void sleep_on(Bell& bell, std::uint32_t seen, std::chrono::nanoseconds limit);

}  // namespace fsdp::shm
