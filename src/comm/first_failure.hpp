// SPDX-License-Identifier: Apache-2.0
/// The board on which the first rank to fail writes why. One failure closes connections all over
/// the job and its victims see each other first; the board tells them who started it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <optional>
#include <string>

#include "comm/timeout.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// *Thread safety*: internally locked. Nothing here throws: the store may be gone with its host.
class FailureBoard {
 public:
  FailureBoard(c10::intrusive_ptr<c10d::Store> store, int rank);
  ~FailureBoard();

  /// Publishes "rank R: text" unless another rank was first. Returns what the board then says.
  std::string publish(const std::string& text) noexcept;

  /// What the board says, waiting up to `patience` for somebody to write; empty when nobody did.
  std::string read(Milliseconds patience) noexcept;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::mutex mutex_;
};

}  // namespace fsdp::comm::detail
