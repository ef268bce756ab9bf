// SPDX-License-Identifier: Apache-2.0
/// The variables that a rank is started with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/launcher.hpp"

namespace fsdp::launch::detail {

/// This process's variables with those of a rank over them, as "NAME=value". `port` is that of the
/// job, MASTER_PORT.
std::vector<std::string> make_environment(const LaunchOptions& options, int rank,
                                          std::uint16_t port);

}  // namespace fsdp::launch::detail
