// SPDX-License-Identifier: Apache-2.0
/// Ends the waits of one rank: at their time-out, when its user wants out, and as soon as the
/// failure board says that the group has failed. Gloo's own limit would close all connections, over
/// which the ranks still have something to tell each other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/failure/first_failure.hpp"
#include "comm/timeout.hpp"

namespace c10d {
class Work;
}

namespace fsdp::comm::detail {

/// *Thread safety*: internally locked.
class Watchdog {
 public:
  /// Waits are ended at most so much too late.
  static constexpr Milliseconds kInterval{100};

  enum class Verdict {
    kNothing,  ///< the wait was left alone
    kTimeout,
    kTold,         ///< there is a failure on the board
    kInterrupted,  ///< the user wants out: see base::host_wants_out()
  };

  /// A thread waits for `work`, until end() at the latest: the watchdog aborts it at the deadline,
  /// which may be moved meanwhile, or when the group has failed.
  class Wait {
   public:
    Wait(Watchdog& watchdog, c10::intrusive_ptr<c10d::Work> work,
         const std::atomic<Clock::time_point>& deadline);
    ~Wait() { end(); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    /// The wait is over. Returns why it was aborted.
    Verdict end();

   private:
    friend class Watchdog;
    Watchdog& watchdog_;
    c10::intrusive_ptr<c10d::Work> work_;
    const Clock::time_point began_ = Clock::now();
    const std::atomic<Clock::time_point>& deadline_;
    Verdict verdict_ = Verdict::kNothing;
  };

  explicit Watchdog(FailureBoard& board);
  ~Watchdog();

 private:
  void run();
  void look_at(Wait& wait, bool is_interrupted);

  FailureBoard& board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::vector<Wait*> waits_;
  std::thread thread_;
};

}  // namespace fsdp::comm::detail
