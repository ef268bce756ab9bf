// SPDX-License-Identifier: Apache-2.0
/// Where the ranks of one process meet: what the threads transport shares.
///
/// NOTE [life of an exchange]
/// One collective of a group of ranks is an Exchange, found by the group and its sequence number:
///
///   post   each rank writes its fingerprint and its source pointer; a rank whose fingerprint
///          differs from an earlier one records the mismatch, so that everybody ends with the same
///          text
///   read   entered once all have posted: ranks read each other's sources without the lock
///   done   a rank has read all it needs; its own source stays in use until every rank is done
///   left   the rank's Work is gone; the last one to leave removes the exchange
///
/// A Work that is destroyed before wait() withdraws its source: nobody may start to read, and those
/// already reading are waited for. The survivors wait a moment for the reason, because a Work
/// dropped while an exception unwinds is followed by publish_failure.
///
/// recover() makes every exchange void, so that nobody waits in an old one, and numbering starts
/// anew.
#pragma once

#include <algorithm>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/seat.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm {

/// All ranks of a job; groups of them (see detail::Seat) share its failure, time-out and
/// generation. *Thread safety*: internally locked.
class ThreadGroup {
 public:
  /// Number and first member of a group, and the collective's number in it.
  struct Key {
    int group = 0;
    int first_rank = 0;
    std::uint64_t sequence = 0;
    auto operator<=>(const Key&) const = default;
    bool is_of_same_group(const Key& other) const {
      return group == other.group && first_rank == other.first_rank;
    }
  };

  /// Its vectors go by the ranks' index in the group.
  struct Exchange {
    Exchange(const Key& name, std::vector<int> members)
        : key(name),
          ranks(std::move(members)),
          fingerprints(ranks.size()),
          sources(ranks.size()),
          posted(ranks.size()),
          done(ranks.size()) {}
    /// The index of a rank of the job.
    std::size_t index_of(int rank) const {
      return static_cast<std::size_t>(std::ranges::lower_bound(ranks, rank) - ranks.begin());
    }

    const Key key;
    const std::vector<int> ranks;
    std::vector<detail::Fingerprint> fingerprints;
    std::vector<const void*> sources;
    std::vector<char> posted;
    std::vector<char> done;
    std::shared_ptr<void> memory;  // of shared_memory()
    std::optional<std::string> mismatch;
    bool is_void = false;  // of an earlier generation
    std::optional<int> withdrawn_by;
    detail::Clock::time_point withdrawn_at;
    int readers = 0;
    std::size_t left = 0;
  };

  struct Failure {
    int rank;
    std::string text;
  };

  ThreadGroup(int size, detail::Milliseconds timeout)
      : size_(size),
        timeout_(timeout),
        is_recovering_(static_cast<std::size_t>(size)),
        wants_recovery_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }
  void set_timeout(detail::Milliseconds timeout) {
    std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }
  detail::Milliseconds timeout() {
    std::lock_guard lock(mutex_);
    return timeout_;
  }

  std::shared_ptr<Exchange> post(const detail::Seat& seat, const detail::Fingerprint& fingerprint,
                                 const void* source, std::int64_t memory_bytes);
  /// Until every rank has posted the same collective and this rank may read.
  void begin_reading(Exchange& exchange, const detail::Fingerprint& mine);
  /// Until every rank has read.
  void finish_reading(Exchange& exchange, const detail::Fingerprint& mine);
  /// This rank reads no more, but is not done: reading failed.
  void stop_reading(Exchange& exchange) noexcept;
  void leave(Exchange& exchange, int rank, bool complete) noexcept;
  void publish_failure(int rank, const std::string& text);
  /// "rank R: text", empty for none.
  std::string first_failure();
  /// Until every rank is here; returns the number of the generation that begins.
  std::uint64_t recover(int rank);
  std::uint64_t generation();

 private:
  using Lock = std::unique_lock<std::mutex>;

  template <class Ready>
  void wait(Lock& lock, Exchange& exchange, const detail::Fingerprint& mine,
            const std::vector<char>& arrived, Ready ready);
  void record_failure(int rank, const std::string& text);
  void begin_generation();

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  detail::Milliseconds timeout_;
  std::map<Key, std::shared_ptr<Exchange>> exchanges_;
  std::optional<Failure> failure_;
  std::vector<char> is_recovering_;
  std::vector<char> wants_recovery_;  // also those who gave up waiting for the others
  std::uint64_t generation_ = 0;
};

}  // namespace fsdp::comm
