// SPDX-License-Identifier: Apache-2.0
/// Starts one program once for each rank on this host and answers for all of them: `fsdp run` is
/// this function behind a command line. It owns the rendezvous socket, so that no port is ever
/// guessed, and it leaves no process behind.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::launch {

/// How rank 0's output is written. Every other rank's lines always start with "[rank] ".
enum class RankZeroOutput {
  kPlain,     ///< without a prefix; inherits standard output when that is a terminal, so that
              ///< progress lines that end in a carriage return work
  kPrefixed,  ///< with "[0] " in front of each line, like every other rank
};

/// What to start and how.
struct LaunchOptions {
  /// Number of ranks, at least 1.
  int ranks = 1;
  /// The program (looked up in PATH when it has no slash) and its arguments; not empty.
  std::vector<std::string> command = {};
  /// How long the remaining ranks have between SIGTERM and SIGKILL once one has failed or the
  /// launcher was told to stop: time for a last checkpoint.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  RankZeroOutput rank_zero = RankZeroOutput::kPlain;
  /// OMP_NUM_THREADS of each rank; 0 keeps the variable if it is set, else max(1, cores / ranks).
  int threads = 0;
  /// Variables set for every rank, after the launcher's own.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

/// Runs `options.ranks` copies of the command and returns when the last of them, and every process
/// they started, has ended.
///
/// Each rank sees RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1,
/// MASTER_PORT and OMP_NUM_THREADS; rank 0 also FSDP_STORE_FD, the listening socket behind
/// MASTER_PORT, which `fsdp::init` hands to the store.
///
/// When a rank fails, the others get SIGTERM and, after `grace`, SIGKILL; one line per failed rank
/// on standard error says its code or signal, the first to fail in front. SIGINT, SIGTERM and
/// SIGHUP are passed on to all ranks (SIGHUP not where it is ignored, as under nohup).
///
/// @returns 0, or the exit code of the rank that failed first (128 + signal if one ended it), or
/// 128 + signal when the launcher itself was told to stop.
/// @blocks until all ranks have ended
/// @throws Error kInvalidArgument for ranks < 1 or no command, kNotFound when the program does not
/// exist, kIo when the system refuses a process or a socket.
/// *Thread safety*: one call at a time per process, and no other thread may start processes
/// meanwhile: whatever becomes a child of this process during the call is ended with it.
int run(const LaunchOptions& options);

}  // namespace fsdp::launch
