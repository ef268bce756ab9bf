// SPDX-License-Identifier: Apache-2.0
/// The variables that a rank is started with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/launcher.hpp"

namespace fsdp::launch::detail {

/// Where the ranks meet.
struct MeetingPoint {
  std::uint16_t port = 0;
  int socket = -1;  ///< that listens on it; rank 0 inherits it
};

/// This process's variables with those of a rank over them, as "NAME=value".
std::vector<std::string> make_environment(const LaunchOptions& options, int rank,
                                          const MeetingPoint& meeting);

}  // namespace fsdp::launch::detail
