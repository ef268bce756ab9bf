// SPDX-License-Identifier: Apache-2.0
/// What a rank writes: to the terminal with a prefix, to its log file as it is, and the last lines
/// kept for the report.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "launch/terminal.hpp"

namespace fsdp::launch::detail {

/// The log file of one rank.
class LogFile {
 public:
  /// Creates or empties it. @throws Error kInvalidArgument when that is refused
  explicit LogFile(const std::string& path);
  /// A full disk is said once on standard error and does not stop the job, which ends with 1.
  void write(std::string_view text);
  bool has_lost() const { return file_.get() < 0; }

 private:
  std::string path_;
  base::Descriptor file_;
};

/// The last lines of a stream. Frames of a stack count as one: an error of LibTorch has fifty of
/// them behind its text.
class LastLines {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kBytes = 400;  ///< of a line; the rest is cut off

  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
  std::size_t frames_ = 0;  ///< that the last line stands for
};

/// Where the lines of one stream of a rank go.
struct OutputRoute {
  Terminal* terminal = nullptr;  ///< null shows nothing
  std::string prefix = {};       ///< of each line on the terminal
  /// Bytes go to the terminal as they come, so that a progress line without an end is seen.
  bool is_immediate = false;
  std::shared_ptr<LogFile> log = {};  ///< shared by the two streams of a rank
};

/// One of a rank's two streams, behind a pipe. Moves whole lines, so that lines of several ranks do
/// not mix; a line above 64 KiB goes in pieces.
class RankOutput {
 public:
  RankOutput() = default;
  RankOutput(base::Descriptor source, OutputRoute route);

  /// The pipe to poll, -1 once it is at its end.
  int source() const { return source_.get(); }
  /// Moves some of what is there, without waiting for the rank. @returns whether there was any
  bool forward();
  /// Moves all that is there, and a last line without an end; closes the pipe.
  void finish();
  /// Whether its log file ended early: a full disk.
  bool has_lost() const { return route_.log && route_.log->has_lost(); }
  std::vector<std::string> last_lines() const { return last_lines_.lines(); }

 private:
  void take(std::string_view bytes);
  void emit(std::string_view lines);
  void end_last_line();

  base::Descriptor source_;
  OutputRoute route_;
  std::string partial_;
  LastLines last_lines_;
};

}  // namespace fsdp::launch::detail
