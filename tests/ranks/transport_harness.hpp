// SPDX-License-Identifier: Apache-2.0
/// What a transport needs to join the contract suite: a name, and a way to run a body on every
/// rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "fsdp/comm/communicator.hpp"

namespace fsdp::test {

using RankBody = std::function<void(comm::Communicator&)>;

/// Runs `body` for each rank on its own thread; gloo and c10d connect over real sockets and meet in
/// a HashStore; shm+gloo takes each two ranks for a host, each three where that divides. Rethrows
/// the first failure.
void run_ranks(const std::string& transport, int size, const RankBody& body);

/// Starts a collective of zeros.
using Start = std::function<std::unique_ptr<comm::Work>(comm::Communicator&)>;

/// An all-gather of `count` elements a rank.
Start gather(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name);

/// A reduce-scatter to `count` elements a rank.
Start reduce(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name);

}  // namespace fsdp::test
