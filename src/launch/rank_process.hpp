// SPDX-License-Identifier: Apache-2.0
/// One rank as a child process.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::launch::detail {

/// How to start a rank.
struct RankCommand {
  std::vector<std::string> arguments = {};
  std::vector<std::string> environment = {};  ///< "NAME=value"
  std::string program = {};                   ///< path of the executable
  int input = -1;                             ///< the child's standard input; -1 inherits
  int output = -1;                            ///< the child's standard output; -1 inherits
  int error = -1;                             ///< the child's standard error; -1 inherits
  bool ignores_hangup = false;                ///< as under nohup
  std::optional<rlimit> open_files = {};      ///< the limit of open files to go back to
  std::optional<cpu_set_t> cores = {};        ///< where it may run; else where the caller may
};

/// What became of a start: a process, or errno of what refused it.
struct StartedProcess {
  pid_t pid = -1;
  int error = 0;
};

/// Starts the command in its own process group; it is killed when the calling process dies. Signals
/// are as a shell would leave them, but SIGUSR1 is ignored: a rank without a handler for it must
/// not die of a request for its state.
StartedProcess start_process(const RankCommand& command);

/// The path of a program, looked up in PATH when it has no slash.
/// @throws Error kNotFound
std::string find_program(const std::string& name);

}  // namespace fsdp::launch::detail
