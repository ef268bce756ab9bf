// SPDX-License-Identifier: Apache-2.0
/// The guardian as the launcher sees it: a small process between the launcher and the ranks.
///
/// NOTE [the guardian]
///
///     launcher                 shows output, reports; may be killed at any moment
///        |         |
///     second guard  | channel  sub-reaper in a session of its own; waits for the guardian
///        |         |
///     guardian                 sub-reaper; starts, stops and reaps
///        |
///     rank 0 ... rank n-1      each leads a process group, dies with the guardian
///        |
///     whatever they start      becomes the guardian's child when its parent dies
///
/// Whoever starts processes must be the one that ends them, and the process that a person or a
/// scheduler kills cannot be it. When the channel closes, the launcher is gone, and the guardian
/// kills all that is below it. When the guardian is killed instead, ranks die with it by the
/// kernel's parent-death signal, and what they started becomes the second guard's, which ends
/// it; when that one is killed, the launcher is a sub-reaper as well. Only all three at once leave
/// something. A guardian that was stopped is let go on before it is told to stop the job. The rules
/// for stopping (hold, grace, kill) are the guardian's, so that a launcher that is stuck in writing
/// to a full pipe does not keep a failed job alive.
///
/// It is a fork without exec: a library has no program of its own to start. It takes no lock that
/// another thread of the launcher could have held, except malloc's, which glibc keeps usable.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "base/descriptor.hpp"
#include "launch/rank_process.hpp"

namespace fsdp::launch::detail {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// After the first failure the others may go on for this long before they are told to stop: a rank
/// that failed by itself must be told from those that fail because it did, and the cause may need
/// longer to end than its victims.
constexpr Milliseconds kHold{300};

/// What the guardian reports; one message each.
struct GuardianEvent {
  enum class Kind : int {
    kNotStarted,  ///< value is errno; nothing will run
    kEnded,       ///< value is the wait status
    kStopped,     ///< stopped, not ended; value is the signal
    kReady,       ///< the first one: `pid` is the guardian's
    kLeftOver,    ///< process `pid` could not be killed; rank -1 when it is no rank
    kDone,        ///< the last one: no process is left, but those reported
  };
  Kind kind = Kind::kDone;
  int rank = -1;
  pid_t pid = -1;
  int value = 0;
  bool was_asked_to_stop = false;  ///< its end is a consequence, not a cause
};

/// What the launcher asks for.
struct GuardianOrder {
  int signal = 0;        ///< for all ranks
  bool is_stop = false;  ///< the grace begins, then SIGKILL
};

/// *Thread safety*: send() is async-signal-safe, all else for one thread.
class Guardian {
 public:
  /// Forks it; it starts one process for each command. @throws Error kIo
  Guardian(const std::vector<RankCommand>& commands, Milliseconds grace);
  /// Ends it, and with it all ranks, when that has not happened yet.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Readable when there is an event.
  int channel() const { return channel_.get(); }
  /// The next event; nothing when there is none yet. An end without kDone means that somebody
  /// killed the guardian: is_lost().
  std::optional<GuardianEvent> receive();
  bool is_lost() const { return is_lost_; }
  /// False when the channel is full, because the guardian stands still or starts many ranks: send
  /// it again. An order to a guardian that has ended counts as sent. One that is to stop the ranks
  /// is woken with SIGCONT, in case somebody has stopped it.
  bool send(const GuardianOrder& order) const noexcept;

 private:
  base::Descriptor channel_;
  pid_t second_pid_ = -1;       // that of the child
  std::atomic<pid_t> pid_{-1};  // of the guardian, as it says
  bool is_lost_ = false;
};

}  // namespace fsdp::launch::detail
