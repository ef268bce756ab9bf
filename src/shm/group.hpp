// SPDX-License-Identifier: Apache-2.0
/// One rank's view of the ranks of a host: posts exchanges, waits for peers, tells failures. See
/// NOTE [life of an exchange in shared memory].
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shm/control_block.hpp"
#include "shm/process.hpp"
#include "shm/segment.hpp"

namespace fsdp::shm {

using Clock = std::chrono::steady_clock;

/// How a wait ended, and the rank it is about, as a rank of the whole job.
struct WaitEnd {
  enum Kind {
    kReady,
    kTimeout,
    kFailed,       ///< a first failure has been told: see Group::first_failure()
    kDropped,      ///< `rank` has withdrawn from this exchange
    kLeft,         ///< `rank` has left in good order
    kLost,         ///< the process of `rank` has ended without leaving
    kRecovered,    ///< the ticket is of an earlier generation
    kInterrupted,  ///< the user wants out: see base::host_wants_out()
  };
  Kind kind = kReady;
  int rank = -1;
};

/// What the first rank to fail told; a rank of the whole job.
struct Failure {
  int rank = -1;
  std::string text;
};

/// All ranks of a host's job, or a part of them: that has slots and staging of its own and shares
/// all else, the first failure, generations and segments, with the whole. Ranks are indices in the
/// group where nothing else is said.
///
/// *Thread safety*: one thread at a time, for each group; publish_failure() from any. No exchange
/// of any group may be under way on another thread during recover() and leave().
class Group {
 public:
  /// Bytes that the block of `size` ranks takes.
  static std::size_t bytes(int size);
  /// Joins the group whose block lies in `segment`; the segment's maker passes the same. Ranks of
  /// one process may pass one segment or one each.
  /// @throws Error kMismatch when the block is for another number of ranks
  /// `first_rank` is the number of rank 0 in a larger job, for messages.
  Group(std::shared_ptr<Segment> segment, const Identity& identity, int rank, int size,
        int first_rank = 0);
  /// Bytes of zero that a part of `size` ranks needs for its slots and staging.
  static std::size_t part_bytes(int size);
  /// A part of `job`, a whole one: the ranks `members` of it, ascending, of which this is the
  /// `index`-th. They share `memory`.
  Group(std::shared_ptr<Group> job, std::shared_ptr<std::byte> memory, std::vector<int> members,
        int index);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Leaves the whole job: who still waits for this rank is told. Its segments stay readable.
  void leave() noexcept;

  int rank() const { return static_cast<int>(rank_); }
  int size() const { return static_cast<int>(size_); }
  /// In the whole job, as messages say it.
  int job_rank() const { return job_rank_of(rank_); }
  int first_rank() const { return whole().first_rank_; }
  std::uint64_t generation() const { return whole().generation_; }
  const Identity& identity() const { return whole().identity_; }

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

  /// Waits ask `failure_elsewhere` now and then: a text that it returns is published as a failure.
  /// Before the first wait.
  void watch_elsewhere(std::function<std::string()> failure_elsewhere) {
    failure_elsewhere_ = std::move(failure_elsewhere);
  }

  /// Until all ranks are here; a new generation then. After a time-out this rank may come again. Of
  /// the whole job.
  WaitEnd recover(Clock::time_point deadline);
  /// Whether recover() has been called and has not succeeded: nothing may be posted or read.
  bool is_between_generations() const { return whole().is_between_generations_; }

  /// From now on waits do not spin, and messages do not count them as this rank's: its own thread
  /// computes meanwhile.
  void wait_in_background() { is_in_background_ = true; }
  bool is_in_background() const { return is_in_background_; }

  // Words for messages; they name ranks of the whole job.
  /// "1, 3": the members that have not posted `ticket` and wait in nothing.
  std::string list_missing(Ticket ticket) const;
  /// The ranks of the whole job that wait in nothing.
  std::string list_idle() const;
  std::string list_missing_recovery() const;
  std::string describe_process(int job_rank) const;

  // Segments are the whole job's; `rank` and owners are ranks of it.
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
  std::optional<WaitEnd> find_absence(std::size_t peer) const;
  bool has_process_ended(std::size_t peer) const;

  const Group& whole() const { return whole_ ? *whole_ : *this; }
  ControlHeader& header() const { return whole().control_.header(); }
  std::size_t place_of(std::size_t rank) const { return members_[rank]; }
  int job_rank_of(std::size_t rank) const {
    return static_cast<int>(place_of(rank)) + whole().first_rank_;
  }
  void look_elsewhere();
  RankBlock& block(std::size_t rank) const { return whole().control_.rank(place_of(rank)); }
  Slot& slot(std::size_t rank, Ticket ticket) const {
    const std::size_t at = sequence_of(ticket) % kRing;
    return memory_ ? reinterpret_cast<Slot*>(memory_.get())[rank * kRing + at]
                   : block(rank).slots[at];
  }
  std::byte* staging(std::size_t rank) const {
    return memory_ ? memory_.get() + size_ * kRing * sizeof(Slot) + rank * kStagingBytes
                   : control_.staging(rank);
  }
  void show_waiting(Ticket ticket) {
    if (!is_in_background_) {
      block(rank_).waiting.store(ticket, std::memory_order_relaxed);
    }
  }
  void follow_generation();
  std::uint64_t state(std::size_t rank, Ticket ticket) const {
    return slot(rank, ticket).state.load(std::memory_order_acquire);
  }
  void set_phase(Ticket ticket, Phase phase);
  void ring_all() noexcept;

  std::size_t rank_;
  std::size_t size_;
  std::vector<std::size_t> members_;  ///< by rank, their ranks in the whole job
  std::uint64_t sequence_ = 0;
  std::uint64_t sequence_generation_ = 0;  ///< the generation that `sequence_` counts in
  bool is_in_background_ = false;

  // Of a part.
  std::shared_ptr<Group> whole_;
  std::shared_ptr<std::byte> memory_;  ///< slots, then staging

  // Of the whole job.
  int first_rank_ = 0;
  std::function<std::string()> failure_elsewhere_;
  std::shared_ptr<Segment> segment_;
  ControlBlock control_;
  Identity identity_;
  std::vector<std::unique_ptr<ProcessWatch>> processes_;
  std::chrono::nanoseconds spin_{0};
  std::uint64_t generation_ = 0;
  bool is_between_generations_ = false;
  std::mutex failure_mutex_;  // of this process: two threads of the rank may fail
};

}  // namespace fsdp::shm
