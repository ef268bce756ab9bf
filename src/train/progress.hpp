// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "train/run_log.hpp"

namespace fsdp::train::detail {

/// Figures as a person reads them.
std::string format_count(std::int64_t count);  ///< "842,496"
std::string format_rate(double per_second);    ///< "18.2k"
std::string format_duration(double seconds);   ///< "2m 10s"

/// The largest resident set this process has had, in bytes.
std::int64_t peak_resident_bytes();

/// The line that tells a person how a run goes: rewritten in place on a terminal, else a plain line
/// every twentieth of the run, at each evaluation, and after a minute without one.
///
/// *Thread safety*: one thread.
class Progress {
 public:
  /// Writes to `stream`. `width` is the terminal's; 0 means that it is none.
  Progress(std::FILE* stream, std::int64_t steps, int width);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const StepReport& report);
  /// Ends the line that is being rewritten.
  void finish();

  /// The text for a report, without a line end.
  std::string line(const StepReport& report, double seconds_left) const;

 private:
  double seconds_left(std::int64_t step) const;

  std::FILE* stream_;
  std::int64_t steps_;
  int width_;
  std::chrono::steady_clock::time_point start_, shown_ = start_;
  std::optional<double> validation_loss_;
  double rate_ = 0;
  bool line_is_open_ = false;
};

/// The width of the terminal behind `stream`; 0 when it is none.
int terminal_width(std::FILE* stream);

}  // namespace fsdp::train::detail
