// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/thread_group.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

namespace {
constexpr detail::Milliseconds kWaitForReason{1000};

std::string list_missing(const std::vector<int>& ranks, const std::vector<char>& arrived) {
  std::string missing;
  for (std::size_t index = 0; index < arrived.size(); ++index) {
    if (!arrived[index]) {
      base::append_to_list(missing, ranks[index]);
    }
  }
  return missing;
}

std::vector<int> all_ranks(std::size_t size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}
}  // namespace

std::shared_ptr<ThreadGroup::Exchange> ThreadGroup::post(const detail::Seat& seat,
                                                         const detail::Fingerprint& fingerprint,
                                                         const void* source,
                                                         std::int64_t memory_bytes) {
  std::lock_guard lock(mutex_);
  const Key key{seat.group, seat.ranks.front(), fingerprint.sequence};
  std::shared_ptr<Exchange>& entry = exchanges_[key];
  if (!entry) {
    entry = std::make_shared<Exchange>(key, seat.ranks);
  }
  Exchange& exchange = *entry;
  for (std::size_t r = 0; r < exchange.posted.size() && !exchange.mismatch; ++r) {
    if (exchange.posted[r] && !detail::same_collective(exchange.fingerprints[r], fingerprint)) {
      exchange.mismatch = detail::describe_mismatch(exchange.fingerprints[r], fingerprint);
    }
  }
  if (memory_bytes >= 0 && !exchange.memory) {
    exchange.memory.reset(std::calloc(static_cast<std::size_t>(memory_bytes) + 64, 1), std::free);
    if (!exchange.memory) {
      throw std::bad_alloc();
    }
  }
  const auto me = static_cast<std::size_t>(seat.index);
  exchange.fingerprints[me] = fingerprint;
  exchange.sources[me] = source;
  exchange.posted[me] = 1;
  changed_.notify_all();
  return entry;
}

template <class Ready>
void ThreadGroup::wait(Lock& lock, Exchange& exchange, const detail::Fingerprint& mine,
                       const std::vector<char>& arrived, Ready ready) {
  const auto start = detail::Clock::now();
  const auto deadline = start + timeout_;
  while (!ready()) {
    if (exchange.mismatch) {
      // Ranks may wait in another order than the one they posted in: the oldest is the cause.
      const auto oldest = std::ranges::find_if(exchanges_, [&](const auto& of) {
        return of.first.is_of_same_group(exchange.key) && of.second->mismatch.has_value();
      });
      fail(ErrorCode::kMismatch,
           oldest == exchanges_.end() ? *exchange.mismatch : *oldest->second->mismatch);
    }
    if (exchange.is_void) {
      fail(ErrorCode::kPeerFailed, detail::describe(mine), " on rank ", mine.rank,
           ": the group has recovered meanwhile");
    }
    if (failure_) {
      fail(ErrorCode::kPeerFailed, detail::describe(mine), ": rank ", failure_->rank,
           " failed first: ", failure_->text);
    }
    auto wake = deadline;
    if (exchange.withdrawn_by) {
      wake = std::min(wake, exchange.withdrawn_at + kWaitForReason);
      if (detail::Clock::now() >= wake) {
        record_failure(*exchange.withdrawn_by, "it dropped " + detail::describe(mine) +
                                                   " before the collective was complete");
        continue;
      }
    }
    if (detail::Clock::now() >= deadline) {
      const std::string text = detail::describe(mine) + " waited " +
                               detail::to_text(std::chrono::duration_cast<detail::Milliseconds>(
                                   detail::Clock::now() - start)) +
                               " on rank " + std::to_string(mine.rank) +
                               "; missing: " + list_missing(exchange.ranks, arrived) +
                               ". Every rank must make this call; FSDP_TIMEOUT sets the limit";
      record_failure(mine.rank, text);
      fail(ErrorCode::kTimeout, text);
    }
    changed_.wait_until(lock, wake);
  }
}

void ThreadGroup::begin_reading(Exchange& exchange, const detail::Fingerprint& mine) {
  Lock lock(mutex_);
  wait(lock, exchange, mine, exchange.posted, [&] {
    return !exchange.mismatch && !exchange.withdrawn_by &&
           std::find(exchange.posted.begin(), exchange.posted.end(), 0) == exchange.posted.end();
  });
  ++exchange.readers;
}

void ThreadGroup::finish_reading(Exchange& exchange, const detail::Fingerprint& mine) {
  Lock lock(mutex_);
  --exchange.readers;
  exchange.done[exchange.index_of(mine.rank)] = 1;
  changed_.notify_all();
  wait(lock, exchange, mine, exchange.done, [&] {
    return std::find(exchange.done.begin(), exchange.done.end(), 0) == exchange.done.end();
  });
}

void ThreadGroup::stop_reading(Exchange& exchange) noexcept {
  std::lock_guard lock(mutex_);
  --exchange.readers;
  changed_.notify_all();
}

void ThreadGroup::leave(Exchange& exchange, int rank, bool complete) noexcept {
  Lock lock(mutex_);
  if (!complete) {
    if (!exchange.withdrawn_by) {
      exchange.withdrawn_by = rank;
      exchange.withdrawn_at = detail::Clock::now();
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return exchange.readers == 0; });
  }
  if (++exchange.left == exchange.ranks.size() && !exchange.is_void) {
    exchanges_.erase(Key(exchange.key));  // a copy: the exchange goes with its entry
  }
}

void ThreadGroup::publish_failure(int rank, const std::string& text) {
  std::lock_guard lock(mutex_);
  record_failure(rank, text);
}

std::string ThreadGroup::first_failure() {
  std::lock_guard lock(mutex_);
  return failure_ ? "rank " + std::to_string(failure_->rank) + ": " + failure_->text : "";
}

void ThreadGroup::record_failure(int rank, const std::string& text) {
  if (!failure_) {
    failure_ = Failure{rank, text};
    changed_.notify_all();
  }
}

std::uint64_t ThreadGroup::recover(int rank) {
  Lock lock(mutex_);
  // Whoever still waits in a collective of the old generation must come here.
  record_failure(rank, "it called recover()");
  is_recovering_[static_cast<std::size_t>(rank)] = 1;
  wants_recovery_[static_cast<std::size_t>(rank)] = 1;
  const std::uint64_t before = generation_;
  if (std::find(is_recovering_.begin(), is_recovering_.end(), 0) == is_recovering_.end()) {
    begin_generation();
  }
  if (!changed_.wait_for(lock, timeout_, [&] { return generation_ != before; })) {
    is_recovering_[static_cast<std::size_t>(rank)] = 0;
    fail(ErrorCode::kTimeout, "recover() on rank ", rank, " waited ", detail::to_text(timeout_),
         "; missing: ", list_missing(all_ranks(wants_recovery_.size()), wants_recovery_),
         ". Every rank must make this call; FSDP_TIMEOUT sets the limit");
  }
  return generation_;
}

std::uint64_t ThreadGroup::generation() {
  std::lock_guard lock(mutex_);
  return generation_;
}

void ThreadGroup::begin_generation() {
  for (auto& [sequence, exchange] : exchanges_) {
    exchange->is_void = true;
  }
  exchanges_.clear();
  std::fill(is_recovering_.begin(), is_recovering_.end(), 0);
  std::fill(wants_recovery_.begin(), wants_recovery_.end(), 0);
  failure_.reset();
  ++generation_;
  changed_.notify_all();
}

}  // namespace fsdp::comm
