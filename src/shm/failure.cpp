// SPDX-License-Identifier: Apache-2.0
/// What Group does when something goes wrong: bad news, the first failure, and a new generation.
#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "shm/group.hpp"
#include "shm/waiting.hpp"

namespace fsdp::shm {
namespace {

constexpr int kRankBits = 16;

constexpr std::uint64_t make_failure(std::uint64_t generation, std::size_t rank) {
  return ((generation + 1) << kRankBits) | (rank + 1);
}
/// One more than the generation, so that zero is no failure.
constexpr std::uint64_t era_of(std::uint64_t failure) { return failure >> kRankBits; }

}  // namespace

bool Group::has_process_ended(std::size_t peer) const {
  const auto& process = whole().processes_[place_of(peer)];
  return process && process->has_ended();
}

/// A process that has ended may have left before: the order of the looks tells.
std::optional<WaitEnd> Group::find_absence(std::size_t peer) const {
  const bool has_ended = has_process_ended(peer);
  if (block(peer).presence.load(std::memory_order_seq_cst) == Presence::kLeft) {
    return WaitEnd{WaitEnd::kLeft, job_rank_of(peer)};
  }
  return has_ended ? std::optional(WaitEnd{WaitEnd::kLost, job_rank_of(peer)}) : std::nullopt;
}

/// Bad news for a wait in `ticket` for `peer`; ticket 0 is set-up or recovery.
std::optional<WaitEnd> Group::judge(std::size_t peer, Ticket ticket) const {
  // Before the failure is looked for: whoever leaves has told the cause before.
  const std::optional<WaitEnd> absence = find_absence(peer);
  if (ticket == 0) {
    return absence;
  }
  if (header().generation.load(std::memory_order_acquire) != generation() ||
      is_between_generations()) {
    return WaitEnd{WaitEnd::kRecovered, -1};
  }
  if (const auto failure = header().first_failure.load(std::memory_order_acquire);
      era_of(failure) == generation() + 1) {
    return WaitEnd{WaitEnd::kFailed, -1};
  }
  if (is_in(state(peer, ticket), ticket, Phase::kDropped)) {
    return WaitEnd{WaitEnd::kDropped, job_rank_of(peer)};
  }
  return absence;
}

void Group::look_elsewhere() {
  const auto& failure_elsewhere = whole().failure_elsewhere_;
  if (failure_elsewhere && !first_failure()) {
    if (const std::string text = failure_elsewhere(); !text.empty()) {
      publish_failure(text);
    }
  }
}

void Group::ring_all() noexcept {
  for (std::size_t rank = 0; rank < size_; ++rank) {
    ring(block(rank).bell);
  }
}

void Group::publish_failure(const std::string& text) noexcept {
  if (whole_) {
    return whole_->publish_failure(text);
  }
  const std::lock_guard lock(failure_mutex_);
  auto& first = control_.header().first_failure;
  const std::uint64_t mine = make_failure(generation_, rank_);
  std::uint64_t seen = first.load(std::memory_order_acquire);
  if (era_of(seen) >= era_of(mine)) {
    return;
  }
  // The text is complete before anybody can find it, so a process that dies here leaves nothing.
  auto& words = block(rank_).failure;
  const std::size_t length = std::min(text.size(), sizeof(words) - 1);
  for (std::size_t word = 0; word <= length / 8; ++word) {
    std::uint64_t letters = 0;
    const std::size_t at = word * 8;
    std::memcpy(&letters, text.data() + at, std::min<std::size_t>(8, length - at));
    words[word].store(letters, std::memory_order_relaxed);
  }
  while (era_of(seen) < era_of(mine) &&
         !first.compare_exchange_weak(seen, mine, std::memory_order_seq_cst)) {
  }
  ring_all();
}

std::optional<Failure> Group::first_failure() const {
  const std::uint64_t first = header().first_failure.load(std::memory_order_acquire);
  if (era_of(first) != generation() + 1) {
    return std::nullopt;
  }
  const std::size_t rank = (first & ((1U << kRankBits) - 1)) - 1;
  std::string text(kFailureWords * 8, '\0');
  for (std::size_t word = 0; word < kFailureWords; ++word) {
    const std::uint64_t letters =
        whole().control_.rank(rank).failure[word].load(std::memory_order_relaxed);
    std::memcpy(text.data() + word * 8, &letters, 8);
  }
  text.resize(std::strlen(text.c_str()));
  return Failure{static_cast<int>(rank) + first_rank(), text};
}

/// S6. A rank that gave up may be counted all the same by one that looked just before; then its
/// next call finds the new generation begun and joins it.
WaitEnd Group::recover(Clock::time_point deadline) {
  FSDP_ASSERT(!whole_, "the whole job recovers");
  auto& shared_generation = control_.header().generation;
  is_between_generations_ = true;
  const std::uint64_t next = generation_ + 1;
  const auto has_begun = [&] { return shared_generation.load(std::memory_order_seq_cst) >= next; };
  const bool comes_late = has_begun();
  if (!comes_late) {
    // Whoever still waits in an exchange of the old generation must come here.
    publish_failure("it called recover()");
    block(rank_).came.store(next, std::memory_order_relaxed);
    block(rank_).here.store(next, std::memory_order_seq_cst);
    ring_all();
    const WaitEnd end = await_each(0, deadline, [&](std::size_t peer) {
      return has_begun() || block(peer).here.load(std::memory_order_seq_cst) >= next;
    });
    if (end.kind != WaitEnd::kReady) {
      block(rank_).here.store(0, std::memory_order_seq_cst);
      if (!has_begun()) {
        return end;
      }
    }
    std::uint64_t before = generation_;
    shared_generation.compare_exchange_strong(before, next, std::memory_order_seq_cst);
    ring_all();
  }
  generation_ = next;
  follow_generation();
  block(rank_).waiting.store(0, std::memory_order_relaxed);
  if (comes_late && first_failure()) {
    return recover(deadline);  // the others have come and gone: meet them in the next one
  }
  is_between_generations_ = false;
  return {};
}

// ---- words for messages -----------------------------------------------------------------------

std::string Group::list_missing(Ticket ticket) const {
  std::string missing;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const std::uint64_t state = this->state(peer, ticket);
    const bool has_come =
        is_over(state, ticket) || block(peer).waiting.load(std::memory_order_relaxed) != 0;
    if (peer != rank_ && !has_come) {
      base::append_to_list(missing, job_rank_of(peer));
    }
  }
  return missing;
}

std::string Group::list_idle() const {
  std::string idle;
  for (std::size_t rank = 0; rank < whole().size_; ++rank) {
    if (whole().control_.rank(rank).waiting.load(std::memory_order_relaxed) == 0) {
      base::append_to_list(idle, whole().job_rank_of(rank));
    }
  }
  return idle;
}

std::string Group::list_missing_recovery() const {
  std::string missing;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (block(peer).came.load(std::memory_order_relaxed) <= generation_) {
      base::append_to_list(missing, job_rank_of(peer));
    }
  }
  return missing;
}

std::string Group::describe_process(int job_rank) const {
  const RankBlock& its = whole().control_.rank(static_cast<std::size_t>(job_rank - first_rank()));
  return "rank " + std::to_string(job_rank) + " (process " +
         std::to_string(its.process.load(std::memory_order_relaxed)) + ")";
}

}  // namespace fsdp::shm
