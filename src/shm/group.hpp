// SPDX-License-Identifier: Apache-2.0
/// One rank's view of the ranks of a host: posts exchanges, waits for peers, tells failures. See
/// NOTE [life of an exchange in shared memory].
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shm/control_block.hpp"
#include "shm/process.hpp"
#include "shm/segment.hpp"

namespace fsdp::shm {

using Clock = std::chrono::steady_clock;

/// How a wait ended, and the rank it is about.
struct WaitEnd {
  enum Kind {
    kReady,
    kTimeout,
    kFailed,     ///< a first failure has been told: see Group::first_failure()
    kDropped,    ///< `rank` has withdrawn from this exchange
    kLost,       ///< `rank` has left, or its process has ended
    kRecovered,  ///< the ticket is of an earlier generation
  };
  Kind kind = kReady;
  int rank = -1;
};

/// What the first rank to fail told.
struct Failure {
  int rank = -1;
  std::string text;
};

/// *Thread safety*: one thread at a time; publish_failure() from any.
class Group {
 public:
  /// Bytes that the block of `size` ranks takes.
  static std::size_t bytes(int size);
  /// Joins the group whose block lies in `segment`; the segment's maker passes the same. Ranks of
  /// one process may pass one segment or one each.
  /// @throws Error kMismatch when the block is for another number of ranks
  Group(std::shared_ptr<Segment> segment, const Identity& identity, int rank, int size);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Leaves: who still waits for this rank is told. Its segments stay readable.
  void leave() noexcept;

  int rank() const { return static_cast<int>(rank_); }
  int size() const { return static_cast<int>(size_); }
  std::uint64_t generation() const { return generation_; }
  const Identity& identity() const { return identity_; }

  /// Until all ranks have joined. Once, before anything else. @blocks
  WaitEnd await_all_joined(Clock::time_point deadline);

  /// The ticket of the next exchange.
  /// @throws Error kInvalidArgument while `kRing` exchanges are under way
  Ticket next_ticket();
  /// Until slot of `ticket` may be written. @blocks only when `kRing` exchanges are under way
  WaitEnd await_slot(Ticket ticket, Clock::time_point deadline);
  /// Fills the slot of `ticket` and shows it. `inline_bytes` of `data` are copied for kInline.
  void post(Ticket ticket, const FingerprintBytes& fingerprint, const Source& source,
            const void* data, std::size_t inline_bytes);

  /// Ends with kRecovered for a ticket of an earlier generation, whatever the slots say.
  WaitEnd await_posted(Ticket ticket, Clock::time_point deadline);
  /// Of any rank; valid from await_posted() to finish().
  const FingerprintBytes& fingerprint(Ticket ticket, std::size_t rank) const;
  const Source& source(Ticket ticket, std::size_t rank) const;
  const std::byte* inline_data(Ticket ticket, std::size_t rank) const;

  /// May this rank read? Not when a rank has dropped; then this rank has dropped as well.
  WaitEnd begin_reading(Ticket ticket);
  /// All that this rank wanted is read.
  void finish(Ticket ticket);
  WaitEnd await_done(Ticket ticket, Clock::time_point deadline);
  /// Withdraws. Waits for those who read in place, at most until `deadline`.
  void drop(Ticket ticket, Clock::time_point deadline) noexcept;

  // Staging, between begin_reading() and finish(): see S5.
  std::byte* own_half(std::uint32_t piece) const;
  const std::byte* half_of(std::size_t rank, std::uint32_t piece) const;
  void show_staged(Ticket ticket, std::uint32_t pieces);
  void show_consumed(Ticket ticket, std::uint32_t pieces);
  WaitEnd await_staged(Ticket ticket, std::size_t rank, std::uint32_t pieces,
                       Clock::time_point deadline);
  WaitEnd await_consumed(Ticket ticket, std::uint32_t pieces, Clock::time_point deadline);

  /// Tells all ranks why this one has failed, unless another was first. Any thread.
  void publish_failure(const std::string& text) noexcept;
  std::optional<Failure> first_failure() const;

  /// Until all ranks are here; a new generation then. After a time-out this rank may come again.
  WaitEnd recover(Clock::time_point deadline);
  /// Whether recover() has been called and has not succeeded: nothing may be posted or read.
  bool is_between_generations() const { return is_between_generations_; }

  /// "1, 3": the ranks that have not posted `ticket` and wait in nothing.
  std::string list_missing(Ticket ticket) const;
  std::string list_missing_recovery() const;
  std::string describe_process(std::size_t rank) const;

  /// Enters a segment of this rank's in its directory and returns its id.
  /// @throws Error kIo when there are too many
  std::uint32_t publish_segment(const Segment& segment);
  void withdraw_segment(std::uint32_t id) noexcept;
  /// Where a rank's segment can be opened.
  /// @throws Error kPeerFailed when that rank has withdrawn it
  Address segment_address(std::size_t rank, std::uint32_t id) const;

 private:
  template <class Ready>
  WaitEnd await(std::size_t peer, Ticket ticket, Clock::time_point deadline, Ready ready);
  template <class Ready>
  WaitEnd await_each(Ticket ticket, Clock::time_point deadline, Ready ready);
  std::optional<WaitEnd> judge(std::size_t peer, Ticket ticket) const;
  bool has_process_ended(std::size_t peer) const;

  RankBlock& block(std::size_t rank) const { return control_.rank(rank); }
  Slot& slot(std::size_t rank, Ticket ticket) const {
    return block(rank).slots[sequence_of(ticket) % kRing];
  }
  std::uint64_t state(std::size_t rank, Ticket ticket) const {
    return slot(rank, ticket).state.load(std::memory_order_acquire);
  }
  void set_phase(Ticket ticket, Phase phase);
  void ring_all() noexcept;

  std::shared_ptr<Segment> segment_;
  ControlBlock control_;
  Identity identity_;
  std::size_t rank_;
  std::size_t size_;
  std::vector<std::unique_ptr<ProcessWatch>> processes_;
  std::chrono::nanoseconds spin_{0};
  std::uint64_t generation_ = 0;
  std::uint64_t sequence_ = 0;
  bool is_between_generations_ = false;
  std::mutex failure_mutex_;  // of this process: two threads of the rank may fail
};

}  // namespace fsdp::shm
