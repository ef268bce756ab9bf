// SPDX-License-Identifier: Apache-2.0
/// What a transport needs to join the contract suite: a name, and a way to run a body on every
/// rank.
#pragma once

#include <functional>
#include <string>

#include "fsdp/comm/communicator.hpp"

namespace fsdp::test {

using RankBody = std::function<void(comm::Communicator&)>;

/// Runs `body` for each rank on its own thread; gloo and c10d connect over real sockets and meet in
/// a HashStore. Rethrows the first failure.
void run_ranks(const std::string& transport, int size, const RankBody& body);

}  // namespace fsdp::test
