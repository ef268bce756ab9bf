// SPDX-License-Identifier: Apache-2.0
/// The connections of one rank over Gloo, and the memory of the collectives that use them. See
/// NOTE [direct exchange] in gloo.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/failure/first_failure.hpp"
#include "comm/failure/watchdog.hpp"
#include "comm/fingerprint.hpp"
#include "comm/gloo/progress.hpp"
#include "comm/seat.hpp"
#include "comm/staging_pool.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

/// What an error of Gloo says, without its source line in front and its advice and LibTorch's stack
/// behind.
std::string cause_of(const std::exception& error);

/// What a collective in flight holds besides the caller's tensors. Recycled, so that steady state
/// allocates nothing of size.
struct Flight {
  SeatPointer seat;
  Fingerprint mine;
  std::vector<Fingerprint> headers;                       // by member of the group
  std::vector<C10dWork> header_sends, header_receives;    // by member, null for oneself
  std::vector<C10dWork> payload_sends, payload_receives;  // by member, null where nothing moves
  std::shared_ptr<StagingPool> pool;                      // where `staging` goes back to
  at::Tensor staging;
};

/// How a rank learns that its group has failed.
enum class Symptom {
  kTimeout,   ///< a peer did not come in time
  kLostPeer,  ///< a connection was closed: the cause is elsewhere
  kTold,      ///< the failure board said so while this rank was waiting
};

/// Connections, recycled memory and the failure board of one generation, for all groups of a job;
/// outlives every Work. Groups need no connections of their own: a group's number is a part of the
/// tags of its messages.
///
/// *Thread safety*: of the rank's thread; send(), fail_group() and what tells a state also of the
/// progress thread. A flight is one thread's at a time.
class GlooExchange {
 public:
  GlooExchange(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> backend,
               Milliseconds timeout, std::uint64_t generation)
      : backend_(std::move(backend)),
        board_(std::move(store), backend_->getRank(), backend_->getSize(), generation),
        timeout_(timeout) {}

  /// Of the whole job.
  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }
  FailureBoard& board() { return board_; }
  Watchdog& watchdog() { return watchdog_; }

  std::unique_ptr<Flight> start(SeatPointer seat, const Fingerprint& fingerprint);
  /// To and from a member of the flight's group.
  void send(Flight& flight, int member, const void* data, std::size_t bytes);
  void receive(Flight& flight, int member, void* data, std::size_t bytes);
  void recycle(std::unique_ptr<Flight> flight);

  /// The group has failed: nothing can be started any more.
  bool is_broken() const { return broken_; }
  /// Ends the group: what is under way fails, and the progress thread is through with it. @blocks
  void end();

  /// What the collectives of this generation do while nobody waits; begins with the first use.
  Progress& progress();
  bool has_progress() const { return progress_ != nullptr; }

  /// Ends the group and throws what happened to the collective `mine`: `own` when this rank saw it
  /// first, else the first failure of the job.
  [[noreturn]] void fail_group(const Fingerprint& mine, Symptom symptom, const std::string& own);

  /// The first failure that the board is known to say; asks it for news without waiting.
  std::string first_failure() noexcept;

  /// Why `peer` has closed its connection, `when` this rank needed it; for fail_group().
  std::string describe_loss(int peer, const std::string& when);

  /// Collectives that were started and are not complete, oldest first. Their owners keep the list.
  std::vector<Flight*>& open() { return open_; }

  /// Asks all ranks of the job which collective they are in. Ranks that have given up at about the
  /// same time, in whatever group, ask as well, and that is their answer; nothing for those that
  /// are silent. Ends the connections to them.
  std::vector<std::optional<Fingerprint>> ask_peers(const Fingerprint& mine);

 private:
  C10dWork post_send(const void* data, std::size_t bytes, int peer, int tag);
  C10dWork post_receive(void* data, std::size_t bytes, int peer, int tag);

  c10::intrusive_ptr<c10d::Backend> backend_;
  FailureBoard board_;
  Watchdog watchdog_{board_};
  std::atomic<Milliseconds> timeout_;
  std::atomic<bool> broken_ = false;
  std::vector<Flight*> open_;
  std::vector<std::unique_ptr<Flight>> idle_flights_;
  std::vector<Fingerprint> answers_;
  std::mutex post_mutex_;
  std::vector<at::Tensor> argument_ = std::vector<at::Tensor>(1);
  std::unique_ptr<Progress> progress_;
};

}  // namespace fsdp::comm::detail
