// SPDX-License-Identifier: Apache-2.0
/// Where the processes of a job meet before they are connected: a TCPStore on rank 0.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>

#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// The store of a job in which all ranks are.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  /// The literal address at which other hosts reached rank 0, a loopback address when all ranks are
  /// on one host. On rank 0 itself MASTER_ADDR may well mean loopback (/etc/hosts), so the others
  /// say what they saw.
  std::string master_address;
};

/// Joins the store of the job and waits until every rank has. Rank 0 serves it, on the socket that
/// FSDP_STORE_FD names when the launcher handed one on; under torchrun its agent serves it. While
/// it waits it says for which ranks, at info level.
/// @collective every process @blocks up to `timeout`
/// @throws Error kTimeout naming the ranks that did not come; kInvalidArgument, on all ranks, when
/// two processes claim one rank, or have another WORLD_SIZE or `transport`; kIo when the port is
/// held by somebody else or rank 0's name is not known; kPeerFailed when rank 0 ends meanwhile
Meeting join_store(const base::RankEnvironment& environment, const std::string& transport,
                   Milliseconds timeout);

}  // namespace fsdp::comm::detail
