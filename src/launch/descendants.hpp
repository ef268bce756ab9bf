// SPDX-License-Identifier: Apache-2.0
/// The processes that ranks leave behind. Below a sub-reaper, every orphan becomes its child,
/// whatever session or group it moved to.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace fsdp::launch::detail {

/// The children of this process, from /proc.
std::vector<pid_t> list_children();

/// Kills and reaps every child that is not in `spared`, and what becomes a child by that, until
/// none is left or `limit` is over: a process in the middle of a device access cannot be killed.
/// @returns what is left
std::vector<pid_t> end_descendants(const std::vector<pid_t>& spared,
                                   std::chrono::milliseconds limit);

}  // namespace fsdp::launch::detail
