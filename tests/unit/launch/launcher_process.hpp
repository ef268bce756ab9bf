// SPDX-License-Identifier: Apache-2.0
/// A launcher in a process of its own, which a test can kill, and what is left of its job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launch/launcher.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::launch::test {

/// Runs launch::run() in a fork that leads a process group. Every process of the job, but the
/// guardian, carries a variable by which left_over() finds it.
class LauncherProcess {
 public:
  /// `before` runs in the fork; an Error of run() is printed and ends it with 2.
  explicit LauncherProcess(LaunchOptions options, const std::function<void()>& before = {});
  /// Kills it when it still runs.
  ~LauncherProcess();
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// The guard above the guardian; waits until there is one.
  pid_t second_guard() const;
  /// Its guardian; waits until there is one.
  pid_t guardian() const;
  /// The exit code, 128 + signal, or -1 when it has not ended within `limit`.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Standard output and standard error so far.
  std::string output() const;
  /// Waits until the output has `text`.
  bool says(const std::string& text) const;
  /// Waits up to `limit` until no process of the job is left. @returns those that are
  std::vector<pid_t> left_over(std::chrono::milliseconds limit) const;

 private:
  fsdp::test::TemporaryDirectory directory_;
  pid_t pid_ = -1;
  int code_ = -1;
};

/// Waits until there is one.
pid_t first_child_of(pid_t parent);

/// Waits until `condition` holds, up to `limit`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(10));

/// The text of a file, empty when there is none.
std::string read_file(const std::string& path);

/// Options that run a shell script on each rank, with a grace of one second.
LaunchOptions script(int ranks, const std::string& text);

}  // namespace fsdp::launch::test
