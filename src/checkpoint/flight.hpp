// SPDX-License-Identifier: Apache-2.0
/// A save between its plan and its commit: one thread a rank, which never throws. It writes each
/// tensor as soon as the training thread has copied it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "archive/commit.hpp"
#include "archive/draft.hpp"
#include "archive/writer_sign.hpp"

namespace fsdp::checkpoint::detail {

struct FlightPlan {
  archive::Draft draft;
  int rank = 0;
  int ranks = 1;
  std::vector<archive::Piece> pieces;
  archive::Index index;
  archive::CommitOptions commit;
};

/// Writes this rank's pieces; on rank 0 also commits when all ranks' receipts are there.
///
/// *Thread safety*: one thread uses it.
class Flight {
 public:
  explicit Flight(FlightPlan plan);
  /// Gives up what has not ended.
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  /// The pieces of the first `count` tensors are in memory.
  void set_copied(std::size_t count);
  /// Returns when this rank has written and synced all its pieces. @throws what went wrong
  void wait_written();
  /// On rank 0: returns when the checkpoint is complete. Elsewhere: at once. @throws likewise
  void wait_committed();
  /// Some rank cannot write: rank 0 stops waiting for it and removes the draft.
  void give_up();
  /// Ends without collectives, as the other ranks may be gone: rank 0 waits for their receipts, for
  /// `patience` from the moment when it has written itself, as they have as much to write, and says
  /// for whom. The others wait for what comes of it, for 3 s at most. A rank that cannot write ends
  /// the wait of all, and so does one of the same host whose process has ended. Returns what went
  /// wrong, on any rank, empty when nothing did.
  std::string end_alone(std::chrono::milliseconds patience = std::chrono::seconds(10));

 private:
  void run();
  void await_copied(std::size_t tensor);
  void commit_when_all_have_written();
  void check_writers_live() const;
  std::string missing_ranks() const;
  /// On another rank than 0: what has become of the checkpoint, as end_alone().
  std::string await_outcome(std::chrono::milliseconds patience) const;

  FlightPlan plan_;
  const std::size_t tensors_;
  std::atomic<std::size_t> copied_ = 0;
  std::atomic<bool> is_given_up_ = false;
  std::optional<archive::WriterSign> sign_;  ///< from the first piece on
  std::promise<void> written_, committed_;
  std::future<void> is_written_, is_committed_;
  std::thread thread_;
};

}  // namespace fsdp::checkpoint::detail
