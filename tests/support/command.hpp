// SPDX-License-Identifier: Apache-2.0
/// Runs a program as a person would and keeps what it said.
#pragma once

#include <string>
#include <utility>
#include <vector>

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

}  // namespace fsdp::test
