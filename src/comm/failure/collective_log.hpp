// SPDX-License-Identifier: Apache-2.0
/// What one rank of a group has been doing: the last collectives and how far each has come. It
/// is what FSDP_LOG=debug prints line by line, and what SIGUSR1 shows of a job that seems to hang.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "comm/fingerprint.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

/// *Thread safety*: internally locked. Costs a few tens of nanoseconds an entry, no allocation.
class CollectiveLog {
 public:
  /// Collectives that are remembered; more are never in flight.
  static constexpr std::size_t kEntries = 64;

  /// A log that describe_collectives() knows for as long as it lives.
  static std::shared_ptr<CollectiveLog> create(std::string transport, int rank, int size);

  void start(const Fingerprint& fingerprint);
  void begin_wait(const Fingerprint& fingerprint);
  void end_wait(const Fingerprint& fingerprint, bool is_complete);

  /// Several lines: what the rank waits for now, what is in flight, the last ten collectives.
  std::string describe() const;
  int rank() const { return rank_; }

 private:
  enum class State { kEmpty, kStarted, kWaiting, kComplete, kFailed };
  struct Entry {
    Fingerprint fingerprint;
    State state = State::kEmpty;
    Clock::time_point started, wait_began, ended;
  };

  CollectiveLog(std::string transport, int rank, int size);
  Entry* find(const Fingerprint& fingerprint);
  std::string describe(const Entry& entry, Clock::time_point now) const;

  const std::string transport_;
  const int rank_;
  const int size_;
  mutable std::mutex mutex_;
  std::array<Entry, kEntries> entries_;
  std::size_t next_ = 0;
};

/// Notes a wait from its beginning to its end; an end without complete() is a failure.
class WaitRecord {
 public:
  WaitRecord(CollectiveLog& log, const Fingerprint& fingerprint)
      : log_(log), fingerprint_(fingerprint) {
    log_.begin_wait(fingerprint_);
  }
  WaitRecord(const WaitRecord&) = delete;
  WaitRecord& operator=(const WaitRecord&) = delete;
  ~WaitRecord() { log_.end_wait(fingerprint_, is_complete_); }
  void complete() { is_complete_ = true; }

 private:
  CollectiveLog& log_;
  const Fingerprint fingerprint_;
  bool is_complete_ = false;
};

/// Writes every living log of this process to standard error, as info lines.
void print_collectives();

}  // namespace fsdp::comm::detail
