// SPDX-License-Identifier: Apache-2.0
/// What the launcher does with the signals that it is sent.
#pragma once

#include <csignal>

#include "launch/guardian.hpp"

namespace fsdp::launch::detail {

/// While it lives, SIGINT, SIGTERM and SIGHUP stop the job (a second SIGINT at once; SIGHUP not
/// where it is ignored, as under nohup), SIGUSR1 goes to all ranks, and SIGPIPE is an error of
/// write(). The handlers talk to the guardian themselves: a launcher that is stuck in a write is
/// stopped all the same.
/// *Thread safety*: one at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// From now on orders go to `guardian`; null before it ends.
  static void connect(const Guardian* guardian);
  /// Stops the job as if `signal` had been sent to the launcher; `for_ranks` is what they get.
  static void stop(int signal, int for_ranks);
  /// Sends what the guardian had no room for. To be called now and then.
  static void send_again();
  /// The first signal that asked the launcher to stop, 0 when none did.
  static int stopped_by();
  bool ignores_hangup() const { return old_hangup_.sa_handler == SIG_IGN; }

 private:
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
  struct sigaction old_hangup_{};
  struct sigaction old_pipe_{};
  struct sigaction old_user_{};
};

}  // namespace fsdp::launch::detail
