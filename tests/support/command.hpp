// SPDX-License-Identifier: Apache-2.0
/// Runs a program as a person would and keeps what it said.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.hpp"

namespace fsdp::test {

struct CommandResult {
  int code = 0;  ///< exit code, or 128 + signal
  std::string out;
  std::string err;
};

/// Runs `command` (looked up in PATH) with more variables in its environment and waits for its end.
/// Variables that would make it a rank of a job are removed.
CommandResult run_command(const std::vector<std::string>& command,
                          const std::vector<std::pair<std::string, std::string>>& variables = {});

/// A command that goes on while the test does something, such as killing it. Ends with SIGKILL at
/// the latest when this is destroyed.
class RunningCommand {
 public:
  RunningCommand(const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& variables = {});
  ~RunningCommand();
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  pid_t pid() const { return child_; }
  void send(int signal) const;
  bool has_ended();
  CommandResult wait();

 private:
  TemporaryDirectory directory_;
  pid_t child_;
  int status_ = 0;
  bool has_ended_ = false;
};

}  // namespace fsdp::test
