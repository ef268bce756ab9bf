// SPDX-License-Identifier: Apache-2.0
/// Starts one program once for each rank on this host and answers for all of them: `fsdp run` is
/// this function behind a command line. It holds the port by which the ranks know each other, so
/// that none is ever guessed, and it leaves no process behind, even when it is killed itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::launch {

/// How rank 0's output is written. Every other rank's lines always start with "[rank] ".
enum class RankZeroOutput {
  kPlain,     ///< without a prefix; on a terminal as it comes, so that progress lines that end in
              ///< a carriage return work
  kPrefixed,  ///< with "[0] " in front of each line, like every other rank
};

/// What to start and how.
struct LaunchOptions {
  /// Number of ranks, at least 1.
  int ranks = 1;
  /// The program (looked up in PATH when it has no slash) and its arguments; not empty.
  std::vector<std::string> command = {};
  /// How long the remaining ranks have between SIGTERM and SIGKILL once one has failed or the
  /// launcher was stopped: time for a last checkpoint.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  RankZeroOutput rank_zero = RankZeroOutput::kPlain;
  /// OMP_NUM_THREADS of each rank; 0 keeps the variable if it is set, else max(1, cores / ranks).
  int threads = 0;
  /// Whether each rank keeps to cores of its own: those that the launcher may use, divided into
  /// runs of neighbours. Never with more ranks than cores.
  bool pins_ranks = true;
  /// A directory, made when it is not there, for one file per rank, rank-R.log, with its standard
  /// output and error; files of an earlier job are overwritten. Empty writes none.
  std::string log_dir = {};
  /// Whether only rank 0's output is shown. The report of a failure quotes any rank.
  bool quiet_ranks = false;
  /// MASTER_PORT; 0 lets the system choose a free port.
  std::uint16_t master_port = 0;
  /// Variables set for every rank, after the launcher's own.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

/// Runs `options.ranks` copies of the command and returns when the last of them, and every process
/// they started, has ended.
///
/// Each rank sees RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1,
/// MASTER_PORT and OMP_NUM_THREADS. MASTER_PORT is held by the launcher and no other job's; nothing
/// goes over it: ranks of one host meet where only their user can come, as often as they like, also
/// when the program starts them by way of others.
///
/// Rank 0 inherits standard input, the others have none. SIGUSR1 is ignored in a rank until it
/// installs a handler.
///
/// When a rank fails, the others get SIGTERM 300 ms later and, after `grace`, SIGKILL. Then a
/// report on standard error names the first failure with its last lines, and how every other rank
/// ended. The first failure is the first rank in time that failed before it was stopped and
/// whose own last lines do not say "[peer failed]", "[time-out]" or that a peer closed the
/// connection.
///
/// SIGINT, SIGTERM and SIGHUP stop the job (SIGHUP not where it is ignored, as under nohup): all
/// ranks get the signal and the grace begins; a second SIGINT kills at once. A reader of the
/// launcher's output that goes away stops it like SIGPIPE. SIGUSR1 is passed on to all ranks.
/// When the launcher is killed, all that it started is killed.
///
/// @returns 0, or the exit code of the first failure (128 + signal if one ended it), or 128 +
/// signal when the launcher itself was stopped.
/// @blocks until all ranks have ended
/// @throws Error kInvalidArgument for ranks < 1, no command, a log that cannot be written or a
/// `master_port` that is held by somebody else; kNotFound when the program does not exist; kIo when
/// the system refuses a process or a socket.
/// *Thread safety*: one call at a time per process.
int run(const LaunchOptions& options);

}  // namespace fsdp::launch
