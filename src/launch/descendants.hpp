// SPDX-License-Identifier: Apache-2.0
/// The processes that ranks leave behind. While the launcher is a sub-reaper, every orphan below it
/// becomes its child, whatever session or group it moved to.
#pragma once

#include <sys/types.h>

#include <vector>

namespace fsdp::launch::detail {

/// The children of this process, from /proc.
std::vector<pid_t> list_children();

/// Kills and reaps every child that is not in `spared`, and what becomes a child by that, until
/// none is left.
void end_descendants(const std::vector<pid_t>& spared);

}  // namespace fsdp::launch::detail
