// SPDX-License-Identifier: Apache-2.0
/// How Group waits: it spins briefly, then sleeps in slices.
///
/// NOTE [a wait notices everything within a slice]
/// A sleeper is woken by the bell of the rank it waits for. What has no bell, a process that was
/// killed or a deadline, it looks for between slices; what concerns all (a failure, a new
/// generation) rings every bell. A condition that holds comes before any bad news: a peer that has
/// posted and then left has posted.
#pragma once

#include <algorithm>
#include <optional>

#include "base/host_language.hpp"
#include "shm/group.hpp"

namespace fsdp::shm {

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::milliseconds kSlice{100};

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// Announced for as long as it lives.
class Sleeper {
 public:
  explicit Sleeper(Bell& bell) : bell_(bell) { bell_.sleepers.fetch_add(1); }
  ~Sleeper() { bell_.sleepers.fetch_sub(1); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Bell& bell_;
};

template <class Ready>
WaitEnd Group::await(std::size_t peer, Ticket ticket, Clock::time_point deadline, Ready ready) {
  if (ready()) {
    return {};
  }
  const auto spin_end = std::min(deadline, Clock::now() + whole().spin_);
  while (!is_in_background_ && Clock::now() < spin_end) {
    for (int i = 0; i < 32; ++i) {
      relax();
      if (ready()) {
        return {};
      }
    }
  }
  Bell& bell = block(peer).bell;
  const Sleeper sleeper(bell);
  show_waiting(ticket);
  WaitEnd end;
  for (;;) {
    const std::uint32_t seen = bell.count.load(std::memory_order_seq_cst);
    if (ready()) {
      break;
    }
    look_elsewhere();
    const std::optional<WaitEnd> bad = judge(peer, ticket);
    const auto now = Clock::now();
    if (bad || now >= deadline) {
      // What came between the two looks counts.
      end = ready() ? WaitEnd{} : bad.value_or(WaitEnd{WaitEnd::kTimeout, job_rank_of(peer)});
      break;
    }
    if (base::host_wants_out()) {
      end = {WaitEnd::kInterrupted, job_rank_of(peer)};
      break;
    }
    sleep_on(bell, seen, std::min<std::chrono::nanoseconds>(kSlice, deadline - now));
  }
  if (end.kind == WaitEnd::kReady) {  // who gives up has come nevertheless: see list_missing()
    show_waiting(0);
  }
  return end;
}

template <class Ready>
WaitEnd Group::await_each(Ticket ticket, Clock::time_point deadline, Ready ready) {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) {
      const WaitEnd end = await(peer, ticket, deadline, [&] { return ready(peer); });
      if (end.kind != WaitEnd::kReady) {
        return end;
      }
    }
  }
  return {};
}

}  // namespace fsdp::shm
