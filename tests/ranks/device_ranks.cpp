// SPDX-License-Identifier: Apache-2.0
/// The transports of a device, each rank on a simulated one: nccl over the stand-in for its
/// library, staged over threads. See transport_harness.hpp. With FSDP_TEST_DEVICE=cuda on devices
/// of CUDA, where ranks take turns in them, and nccl is what is installed: tools/gpu_check.sh
/// chooses the cases that fit.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "comm/nccl/nccl.hpp"
#include "comm/staged/staged.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/sim/sim.hpp"

namespace fsdp::test {
namespace {

bool is_on_cuda() {
  const char* device = std::getenv("FSDP_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

c10::Device device_of(int rank) {
  if (!is_on_cuda()) {
    return sim::device(rank);
  }
  const int count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(rank % count)};
}

}  // namespace

std::vector<std::string> device_transports() {
  // Before any backward, and before the library is looked for.
  static const bool is_ready = [] {
    if (!is_on_cuda()) {
      sim::start({.mode = sim::mode_of_environment()});
      ::setenv("FSDP_NCCL", FSDP_NCCL_STAND_IN, 1);
    }
    return true;
  }();
  return is_ready ? std::vector<std::string>{"nccl", "staged"} : std::vector<std::string>{};
}

void run_device_ranks(const std::string& transport, int size, const RankBody& body) {
  run_threads(size, [&](World world) {
    const c10::Device device = device_of(world.rank());
    std::optional<sim::Claim> claim;
    if (is_on_cuda()) {
      c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
    } else {
      claim.emplace(world.rank(), world.rank());
    }
    set_device_of_rank(device);
    if (transport == "staged") {
      return body(comm::detail::make_staged_link(world.link(), device));
    }
    const auto found = comm::detail::nccl::find_library();
    if (!found.library) {
      throw std::runtime_error(found.problem);
    }
    body(comm::detail::make_nccl_link(found.library, world.link(), device,
                                      std::chrono::milliseconds(20000)));
  });
  if (!is_on_cuda()) {
    for (const sim::Report& report : sim::take_reports()) {
      ADD_FAILURE() << report.text;
    }
  }
}

}  // namespace fsdp::test
