// SPDX-License-Identifier: Apache-2.0
/// How long a wait may last, and points in time derived from it.
#pragma once

#include <chrono>
#include <string>

namespace fsdp::comm::detail {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// FSDP_TIMEOUT (seconds, fractions allowed) or 5 minutes.
/// @throws Error kInvalidArgument when the variable is not a positive number
Milliseconds default_timeout();

/// FSDP_SETUP_TIMEOUT (seconds), else default_timeout(): how long ranks may take to meet.
/// @throws Error kInvalidArgument as above
Milliseconds default_setup_timeout();

/// "2.5 s".
std::string to_text(Milliseconds duration);

/// Of a wait that may last for ever.
inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

/// What is left until `deadline`, at least 1 ms, as c10d reads 0 as "no limit", and at most 30
/// days.
Milliseconds remaining(Clock::time_point deadline);

}  // namespace fsdp::comm::detail
