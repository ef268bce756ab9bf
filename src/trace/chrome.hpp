// SPDX-License-Identifier: Apache-2.0
/// A timeline as text in the trace event format of Chrome, which Perfetto opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/timeline.hpp"

namespace fsdp::trace {

/// Whose timeline it is.
struct Who {
  int rank = 0;
  std::string host = {};
  std::vector<std::string> units = {};  ///< their names, by index
  /// Added to this rank's clock to get the time in the file.
  std::int64_t clock_offset_ns = 0;
};

/// Each event a line without a comma at its end; the lines of all ranks, joined by commas, between
/// chrome_head() and kChromeTail are a file. A rank is a process, a lane of a track a thread, an
/// arrow leads from a gather to the computation that took its weights. Names that are no UTF-8 are
/// printed with U+FFFD.
std::vector<std::string> chrome_events(const Timeline& timeline, const Who& who);

/// What a file of the trace with this key begins with, one line, and what it ends with.
std::string chrome_head(const std::string& key);
inline constexpr const char* kChromeTail = "\n]}\n";

}  // namespace fsdp::trace
