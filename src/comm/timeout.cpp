// SPDX-License-Identifier: Apache-2.0
#include "comm/timeout.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {

/// Seconds from a variable, nothing when it is not set.
std::optional<Milliseconds> read_seconds(const char* name) {
  constexpr double kLongestSeconds = 30.0 * 24 * 3600;
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  FSDP_CHECK(*end == '\0' && seconds > 0 && seconds <= kLongestSeconds, ErrorCode::kInvalidArgument,
             name, " is '", text, "', must be a number of seconds above 0 and at most 30 days");
  return std::max(Milliseconds(1), Milliseconds(static_cast<std::int64_t>(seconds * 1000)));
}

}  // namespace

Milliseconds default_timeout() {
  return read_seconds("FSDP_TIMEOUT").value_or(std::chrono::minutes(5));
}

Milliseconds default_setup_timeout() {
  const auto setup = read_seconds("FSDP_SETUP_TIMEOUT");
  return setup ? *setup : default_timeout();
}

std::string to_text(Milliseconds duration) {
  std::ostringstream stream;
  stream << static_cast<double>(duration.count()) / 1000.0 << " s";
  return stream.str();
}

Milliseconds remaining(Clock::time_point deadline) {
  constexpr Milliseconds kLongest = std::chrono::hours(30 * 24);
  return std::clamp(std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()),
                    Milliseconds(1), kLongest);
}

}  // namespace fsdp::comm::detail
