// SPDX-License-Identifier: Apache-2.0
/// Runs part of a test in real processes: the test binary starts itself again, once a rank, with a
/// filter that selects the current test, and the copies run `body`. fork alone would not do,
/// because LibTorch and Gloo own threads.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::test {

/// How one rank's process ended.
struct ProcessResult {
  int exit_code = 0;   ///< 128 + signal when a signal ended it
  std::string output;  ///< standard output and standard error together
  std::chrono::milliseconds duration{};
  bool killed_by_test = false;  ///< it was still running at the limit
};

/// A signal for one rank, so long after all have been started.
struct Disturbance {
  int rank = 0;
  int signal = 0;
  std::chrono::milliseconds after{};
};

/// What a process may take at most, start included: `limit` in a plain build, as many times longer
/// under a sanitizer as the watchdog's.
std::chrono::milliseconds in_time(std::chrono::milliseconds limit);

struct ProcessOptions {
  /// See in_time().
  std::chrono::milliseconds limit = std::chrono::seconds(50);
  /// A rank that gets SIGSTOP is killed when all others have ended.
  std::optional<Disturbance> disturbance = {};
  /// Set in every rank besides the variables that fsdp::init reads.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

/// In the parent: starts `size` copies and returns how they ended, by rank; at the limit survivors
/// are killed. In a copy: runs `body(rank)` and ends the process, with 1 after an exception
/// (printed) or a failed expectation. `name` tells several calls in one test apart.
std::vector<ProcessResult> run_processes(int size, const std::string& name,
                                         const std::function<void(int rank)>& body,
                                         const ProcessOptions& options = {});

}  // namespace fsdp::test
