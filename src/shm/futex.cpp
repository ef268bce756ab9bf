// SPDX-License-Identifier: Apache-2.0
#include "shm/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace fsdp::shm {

namespace {
// Not FUTEX_PRIVATE_FLAG: the waiters are other processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* limit) {
  return ::syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}
}  // namespace

void ring(Bell& bell) {
  bell.count.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleepers.load(std::memory_order_seq_cst) > 0) {
    futex(bell.count, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void sleep_on(Bell& bell, std::uint32_t seen, std::chrono::nanoseconds limit) {
  const auto nanoseconds = std::max<std::int64_t>(limit.count(), 1);
  const timespec duration{.tv_sec = nanoseconds / 1'000'000'000,
                          .tv_nsec = nanoseconds % 1'000'000'000};
  futex(bell.count, FUTEX_WAIT, seen, &duration);
}

}  // namespace fsdp::shm
