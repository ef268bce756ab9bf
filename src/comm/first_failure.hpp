// SPDX-License-Identifier: Apache-2.0
/// The board on which the first rank to fail writes why. One failure closes connections all over
/// the job and its victims see each other first; the board tells them who started it.
///
/// NOTE [the board's thread]
/// The board lies in the store that rank 0 serves. A rank that is stopped answers nothing and a
/// store's client has no limit for most requests, so all of them are made on a thread of the
/// board's own: callers wait for it for a limited time, and leave it behind if it is stuck. The
/// same thread looks at the board while a wait lasts, so that a failure anywhere ends all waits
/// within a moment instead of a time-out later.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>

#include "comm/timeout.hpp"

namespace c10d {
class Store;
class Work;
}  // namespace c10d

namespace fsdp::comm::detail {

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

  /// What the board says, waiting up to `patience` for somebody to write; empty when nobody did.
  std::string read(Milliseconds patience) noexcept;

  /// Adds `delta` to a number in the store and returns the sum, -1 when it cannot be reached.
  std::int64_t add(const std::string& key, std::int64_t delta) noexcept;

  /// From here to the next call (null: nothing) `work` is being waited for, and is aborted as soon
  /// as there is a failure on the board.
  void watch(c10::intrusive_ptr<c10d::Work> work) noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fsdp::comm::detail
