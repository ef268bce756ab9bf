// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace fsdp::train::detail {

/// What one step did, the same on every rank but for the times.
struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the global batch
  double grad_norm = 0;   ///< of the whole gradient, before clipping
  double lr = 0;
  double tokens_per_s = 0;
  double seconds = 0;           ///< since the run began
  double wait_seconds = 0;      ///< of the step, for data
  std::int64_t peak_bytes = 0;  ///< largest resident set of rank 0 so far
  std::optional<double> validation_loss = {};
};

/// One line of JSON: every double with 17 digits, so that it reads back as the same bits; values
/// that are not finite become null.
std::string to_json(const StepReport& report);

/// The loss that a log has for a step; nothing when it has no whole line of it.
std::optional<double> logged_loss(const std::string& path, std::int64_t step);

/// The log of a run: one line a step, on disk as soon as it is written.
class RunLog {
 public:
  /// Starts a log; with an empty path, none. A log that is there is cut behind its lines up to step
  /// `steps_to_keep` and goes on. @throws Error kIo
  explicit RunLog(const std::string& path, std::int64_t steps_to_keep = 0);
  void write(const StepReport& report);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace fsdp::train::detail
