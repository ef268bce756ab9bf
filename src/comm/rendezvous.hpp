// SPDX-License-Identifier: Apache-2.0
/// Where the processes of a job meet before they are connected: a TCPStore on rank 0.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// Joins the store of the job and waits until every rank has. Rank 0 serves it, on the socket that
/// FSDP_STORE_FD names when the launcher handed one on; under torchrun its agent serves it.
/// @collective every process @blocks
/// @throws Error kTimeout naming the ranks that did not come, kInvalidArgument when two processes
/// claim one rank, kIo when the address cannot be served or reached
c10::intrusive_ptr<c10d::Store> join_store(const base::RankEnvironment& environment,
                                           Milliseconds timeout);

}  // namespace fsdp::comm::detail
