// SPDX-License-Identifier: Apache-2.0
/// Lines for people on standard error. FSDP_LOG chooses how many: debug, info (default), warn or
/// quiet. Errors are exceptions, not log lines.
#pragma once

#include <sstream>
#include <string>

namespace fsdp::base {

/// How much is written, from everything to nothing.
enum class LogLevel { kDebug, kInfo, kWarn, kQuiet };

/// The level that FSDP_LOG names; kInfo when it is not set or not known.
LogLevel parse_log_level(const char* text);

/// Lines below this level are not written. Read once from FSDP_LOG.
LogLevel log_level();
void set_log_level(LogLevel level);

/// The rank that this thread's lines start with; -1 (default) writes none.
void set_log_rank(int rank);

/// Writes "fsdp[rank] level: text" as one line. *Thread safety*: lines do not mix.
void write_log(LogLevel level, const std::string& text);

/// Writes the parts one after the other when `level` is on.
template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level >= log_level()) {
    std::ostringstream stream;
    (stream << ... << parts);
    write_log(level, stream.str());
  }
}

}  // namespace fsdp::base
