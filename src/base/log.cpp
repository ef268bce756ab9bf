// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/log.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/text.hpp"

namespace fsdp::base {
namespace {

/// A level that does not exist must not look as if there were nothing to log.
LogLevel level_from_environment() {
  const char* text = std::getenv("FSDP_LOG");
  const std::string_view name = text == nullptr ? "" : text;
  if (!name.empty() && name != "debug" && name != "info" && name != "warn" && name != "quiet") {
    const std::string line = "fsdp warning: FSDP_LOG is '" + std::string(name) +
                             "', must be debug, info, warn or quiet; taken as info\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  return parse_log_level(text);
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

thread_local int current_rank = -1;

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarn: return "warning";
    case LogLevel::kQuiet: break;
  }
  return "quiet";
}

}  // namespace

LogLevel parse_log_level(const char* text) {
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "warn") {
    return LogLevel::kWarn;
  }
  return name == "quiet" ? LogLevel::kQuiet : LogLevel::kInfo;
}

LogLevel log_level() { return current_level().load(std::memory_order_relaxed); }
void set_log_level(LogLevel level) { current_level().store(level, std::memory_order_relaxed); }
void set_log_rank(int rank) { current_rank = rank; }

void write_log(LogLevel level, const std::string& text) {
  std::string line = "fsdp";
  if (current_rank >= 0) {
    line += "[" + std::to_string(current_rank) + "]";
  }
  line += std::string(" ") + name_of(level) + ": " + shown(text) + "\n";
  // One write a line: the lines of several ranks on one terminal do not mix.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fsdp::base
