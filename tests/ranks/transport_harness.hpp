// SPDX-License-Identifier: Apache-2.0
/// What a transport needs to join the contract suite: a name, and a way to run a body on every
/// rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "fsdp/comm/transport.hpp"

namespace fsdp::test {

using RankBody = std::function<void(const comm::Link&)>;

/// What a suite needs of a transport.
struct Needs {
  std::vector<int> ranks;      ///< all numbers of ranks that the suite runs
  bool splits = false;         ///< Traits::can_split
  bool recovers = false;       ///< Traits::can_recover
  bool has_processes = false;  ///< the ranks are processes that call init()
};

/// The names of the transports in the table that serve; those that this build is without are left
/// out.
std::vector<std::string> transports(const Needs& needs);

/// Runs `body` for each rank on its own thread; gloo and c10d connect over real sockets and meet in
/// a HashStore; shm+gloo takes each two ranks for a host, each three where that divides. Rethrows
/// the first failure.
void run_ranks(const std::string& transport, int size, const RankBody& body);

/// In the body of run_ranks, returns when all ranks that have not ended are here. It sends nothing.
/// A rank that has left a collective may recover or fail while others are still in that collective,
/// and they then throw from it, as they should: a test that means the next collective meets first.
void meet();

/// The transports of a device, in a test that is linked with a file which defines these;
/// run_ranks() and transports() then know them, and no others.
std::vector<std::string> device_transports();
void run_device_ranks(const std::string& transport, int size, const RankBody& body);

/// Where the rank of this thread computes.
c10::Device device_of_rank();
void set_device_of_rank(c10::Device device);
/// Options, and copies, there and back.
at::TensorOptions on_device(at::ScalarType dtype = at::kFloat);
at::Tensor to_device(const at::Tensor& tensor);
at::Tensor to_host(const at::Tensor& tensor);

/// Starts a collective of zeros.
using Start = std::function<std::unique_ptr<comm::Work>(const comm::Link&)>;

/// An all-gather of `count` elements a rank.
Start gather(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name);

/// A reduce-scatter to `count` elements a rank.
Start reduce(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name);

}  // namespace fsdp::test
