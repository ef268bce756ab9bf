// SPDX-License-Identifier: Apache-2.0
/// The board on which the first rank to fail writes why. One failure closes connections all over
/// the job and its victims see each other first; the board tells them who started it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>

#include "comm/timeout.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// NOTE [the board's thread]
/// The board lies in a store that another process serves, usually rank 0. A client of the store
/// waits for ever for a process that is stopped, so all requests are made on a thread of the
/// board's own: callers wait for it for a limited time, and leave it behind when it is stuck. Until
/// it is free again, when that process goes on, others get no answer at once, except those who
/// bring a deadline: a group that recovers has time.
///
/// *Thread safety*: internally locked. Nothing here throws: the store may be gone with its host.
class FailureBoard {
 public:
  /// A board of its own for each generation of the group.
  FailureBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::uint64_t generation);
  /// On rank 0, which takes the store with it, waits a moment for the others to read a failure.
  ~FailureBoard();

  /// Publishes "rank R: text" unless another rank was first. Returns what the board then says;
  /// empty when it cannot be reached.
  std::string publish(const std::string& text) noexcept;
  /// The same, also with a store that is late, until `deadline`.
  std::string publish(const std::string& text, Clock::time_point deadline) noexcept;

  /// What the board says, waiting up to `patience` for somebody to write; empty when nobody did.
  std::string read(Milliseconds patience) noexcept;

  /// Tells that this rank leaves in good order; before its connections are closed.
  void say_goodbye() noexcept;
  bool has_left(int rank) noexcept;

  /// Asks for a look at the board without waiting for it; has_failure() then tells.
  void look_soon() noexcept;
  bool has_failure() const noexcept;

  /// Adds `delta` to a number in the store and returns the sum, -1 when it cannot be reached.
  std::int64_t add(const std::string& key, std::int64_t delta) noexcept;
  /// The same, also with a store that is late, until `deadline`.
  std::int64_t add(const std::string& key, std::int64_t delta, Clock::time_point deadline) noexcept;

 private:
  struct State;
  struct Limit;
  std::string publish(const std::string& text, const Limit& limit) noexcept;
  std::int64_t add(const std::string& key, std::int64_t delta, const Limit& limit) noexcept;

  std::shared_ptr<State> state_;
};

}  // namespace fsdp::comm::detail
