// SPDX-License-Identifier: Apache-2.0
/// The store that torchrun's agent serves to the ranks it has started.
#pragma once

#include <string>

#include "comm/join/meeting.hpp"
#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace fsdp::comm::detail {

bool agent_serves_store();

/// The agent's store, and the address at which it was found.
/// @blocks until `deadline` @throws Error kTimeout, kIo
Meeting reach_agent_store(const base::RankEnvironment& environment, const std::string& who,
                          Clock::time_point deadline);

}  // namespace fsdp::comm::detail
