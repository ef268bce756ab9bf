// SPDX-License-Identifier: Apache-2.0
/// Ends the waits of one rank: at their time-out, and as soon as the failure board says that the
/// group has failed. Gloo's own limit would close all connections, over which the ranks still have
/// something to tell each other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/first_failure.hpp"
#include "comm/timeout.hpp"

namespace c10d {
class Work;
}

namespace fsdp::comm::detail {

/// *Thread safety*: one thread waits at a time.
class Watchdog {
 public:
  /// Waits are ended at most so much too late.
  static constexpr Milliseconds kInterval{100};

  enum class Verdict {
    kNothing,  ///< the wait was left alone
    kTimeout,
    kTold,  ///< there is a failure on the board
  };

  explicit Watchdog(FailureBoard& board);
  ~Watchdog();

  /// From now on `work` is waited for: aborts it at the deadline or when the group has failed.
  void begin(c10::intrusive_ptr<c10d::Work> work, Clock::time_point deadline);
  /// The wait is over. Returns why it was aborted.
  Verdict end();

 private:
  void run();

  FailureBoard& board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  Clock::time_point began_;
  Clock::time_point deadline_;
  Verdict verdict_ = Verdict::kNothing;
  std::thread thread_;
};

}  // namespace fsdp::comm::detail
