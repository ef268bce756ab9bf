// SPDX-License-Identifier: Apache-2.0
/// The transports of a device, each rank on a simulated one: nccl over the stand-in for its
/// library, staged over threads. See transport_harness.hpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "comm/nccl/nccl.hpp"
#include "comm/staged/staged.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/sim/sim.hpp"

namespace fsdp::test {

std::vector<std::string> device_transports() {
  // Before any backward, and before the library is looked for.
  static const bool is_ready = [] {
    sim::start({.mode = sim::mode_of_environment()});
    ::setenv("FSDP_NCCL", FSDP_NCCL_STAND_IN, 1);
    return true;
  }();
  return is_ready ? std::vector<std::string>{"nccl", "staged"} : std::vector<std::string>{};
}

void run_device_ranks(const std::string& transport, int size, const RankBody& body) {
  run_threads(size, [&](World world) {
    const sim::Claim claim(world.rank(), world.rank());
    const c10::Device device = sim::device(world.rank());
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
  for (const sim::Report& report : sim::take_reports()) {
    ADD_FAILURE() << report.text;
  }
}

}  // namespace fsdp::test
