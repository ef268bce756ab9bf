// SPDX-License-Identifier: Apache-2.0
/// Ranks as threads on the device that a test runs on: the CPU, or simulated accelerators where
/// FSDP_TEST_DEVICE is "sim". A test that makes its modules and inputs there, and reads numbers by
/// on_cpu(), serves both.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "fsdp/comm/world.hpp"
#include "support/stream_transport.hpp"

namespace fsdp::test {

/// Whether tests run on simulated devices.
bool is_on_sim();

/// Makes the simulated devices before the first test: autograd must not have run. A test that uses
/// on_sim() whatever FSDP_TEST_DEVICE says has one at file scope.
class SimFirst {
 public:
  SimFirst();
};

/// Of the calling rank: sim:r on rank r, else the CPU; outside of ranks the CPU.
c10::Device rank_device();

/// Where the calling rank computes; the tensor itself where it lies there.
at::Tensor to_rank(const at::Tensor& tensor);

/// The numbers of a tensor, for tests to read; the tensor itself where it is on the CPU. @blocks
at::Tensor on_cpu(const at::Tensor& tensor);

/// run_threads(), on the device that the test runs on.
void on_ranks(int ranks, const std::function<void(World)>& body);

/// The same on simulated devices. What the checker reports fails the test.
void on_sim(int ranks, const std::function<void(World)>& body);

/// The same for planted faults: returns what the checker reports, a line each.
std::string reports_on_sim(int ranks, StreamFault fault, const std::function<void(World)>& body);

}  // namespace fsdp::test
