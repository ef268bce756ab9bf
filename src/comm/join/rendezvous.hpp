// SPDX-License-Identifier: Apache-2.0
/// Where the processes of a job meet before they are connected: a store in rank 0's process, or
/// the one of torchrun's agent.
#pragma once

#include <string>

#include "comm/join/meeting.hpp"
#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace fsdp::comm::detail {

/// Joins the store of the job and waits until every rank has. Rank 0 serves it, at a place that
/// only this user can reach where all ranks are on one host, else at MASTER_PORT; under torchrun
/// its agent serves it. Once all have met, nobody else is let in, and the place is free for the
/// next job, or the next call of this one. While it waits it says for which ranks, at info level.
/// @collective every process @blocks up to `timeout`
/// @throws Error kTimeout naming the ranks that did not come; kInvalidArgument, on all ranks, when
/// two processes claim one rank, or have another WORLD_SIZE or `transport`, and on a rank with
/// another job secret; kIo when the port is held by somebody else or rank 0's name is not known;
/// kPeerFailed when rank 0 ends meanwhile
Meeting join_store(const base::RankEnvironment& environment, const std::string& transport,
                   Milliseconds timeout);

}  // namespace fsdp::comm::detail
