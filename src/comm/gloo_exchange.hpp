// SPDX-License-Identifier: Apache-2.0
/// The connections of one rank over Gloo, and the memory of the collectives that use them. See
/// NOTE [direct exchange] in gloo.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/collective_log.hpp"
#include "comm/fingerprint.hpp"
#include "comm/first_failure.hpp"
#include "comm/timeout.hpp"
#include "comm/watchdog.hpp"

namespace fsdp::comm::detail {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

/// What an error of Gloo says, without its source line in front and its advice and LibTorch's stack
/// behind.
std::string cause_of(const std::exception& error);

/// What a collective in flight holds besides the caller's tensors. Recycled, so that steady state
/// allocates nothing of size.
struct Flight {
  Fingerprint mine;
  std::vector<Fingerprint> headers;                       // by rank
  std::vector<C10dWork> header_sends, header_receives;    // by rank, null for oneself
  std::vector<C10dWork> payload_sends, payload_receives;  // by rank, null where nothing moves
  at::Tensor staging;
};

/// How a rank learns that its group has failed.
enum class Symptom {
  kTimeout,   ///< a peer did not come in time
  kLostPeer,  ///< a connection was closed: the cause is elsewhere
  kTold,      ///< the failure board said so while this rank was waiting
};

/// Connections, recycled memory and the failure board of one generation; outlives every Work.
class GlooExchange {
 public:
  GlooExchange(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> backend,
               std::shared_ptr<CollectiveLog> log, Milliseconds timeout, std::uint64_t generation)
      : backend_(std::move(backend)),
        log_(std::move(log)),
        board_(std::move(store), backend_->getRank(), backend_->getSize(), generation),
        timeout_(timeout) {}

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }
  FailureBoard& board() { return board_; }
  Watchdog& watchdog() { return watchdog_; }
  CollectiveLog& log() { return *log_; }

  std::unique_ptr<Flight> start(const Fingerprint& fingerprint);
  void send(Flight& flight, int peer, const void* data, std::size_t bytes);
  void receive(Flight& flight, int peer, void* data, std::size_t bytes);
  void recycle(std::unique_ptr<Flight> flight);

  /// The group has failed: nothing can be started any more.
  bool is_broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  /// Ends the group and throws what happened to the collective `mine`: `own` when this rank saw it
  /// first, else the first failure of the job.
  [[noreturn]] void fail_group(const Fingerprint& mine, Symptom symptom, const std::string& own);

  /// Collectives that were started and are not complete, oldest first. Their owners keep the list.
  std::vector<Flight*>& open() { return open_; }

  /// Asks all peers which collective they are in. Ranks that have given up at about the same time
  /// ask as well, and that is their answer; nothing for those that are silent. Ends the connections
  /// to them.
  std::vector<std::optional<Fingerprint>> ask_peers(const Fingerprint& mine);

  std::int64_t reserve_staging(std::int64_t bytes, int in_flight);
  at::Tensor take_staging(std::int64_t bytes);

 private:
  C10dWork post_send(const void* data, std::size_t bytes, int peer, int tag);
  C10dWork post_receive(void* data, std::size_t bytes, int peer, int tag);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<CollectiveLog> log_;
  FailureBoard board_;
  Watchdog watchdog_{board_};
  Milliseconds timeout_;
  bool broken_ = false;
  std::vector<Flight*> open_;
  std::vector<std::unique_ptr<Flight>> idle_flights_;
  std::vector<at::Tensor> idle_staging_;
  std::vector<Fingerprint> answers_;
  std::vector<at::Tensor> argument_ = std::vector<at::Tensor>(1);
};

}  // namespace fsdp::comm::detail
