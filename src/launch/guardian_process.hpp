// SPDX-License-Identifier: Apache-2.0
/// The guardian from inside. See NOTE [the guardian] in guardian.hpp.
#pragma once

#include <vector>

#include "launch/guardian.hpp"

namespace fsdp::launch::detail {

/// Starts the commands, answers for them until the last descendant has ended, and ends the process.
/// Called in a fresh fork with all signals blocked.
[[noreturn]] void run_guardian(const std::vector<RankCommand>& commands, Milliseconds grace,
                               int channel);

}  // namespace fsdp::launch::detail
