// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "fsdp/comm/job.hpp"
#include "support/sim/sim.hpp"

namespace fsdp::test {

namespace {

thread_local c10::Device own_device = c10::kCPU;

class Devices : public testing::Environment {
  void SetUp() override { sim::start({.mode = sim::mode_of_environment()}); }
};

/// Where the whole binary runs on simulated devices.
[[maybe_unused]] const bool is_first = [] {
  if (is_on_sim()) {
    const SimFirst first;
  }
  return true;
}();

/// Until all kernels of the rank's device have run, whatever the body threw.
class OnDevice {
 public:
  explicit OnDevice(int rank) : claim_(rank, rank) { own_device = sim::device(rank); }
  ~OnDevice() {
    c10::impl::VirtualGuardImpl(own_device.type()).synchronizeDevice(own_device.index());
    own_device = c10::kCPU;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  sim::Claim claim_;
};

}  // namespace

SimFirst::SimFirst() { testing::AddGlobalTestEnvironment(new Devices); }

bool is_on_sim() {
  const char* device = std::getenv("FSDP_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "sim";
}

c10::Device rank_device() { return own_device; }
at::Tensor to_rank(const at::Tensor& tensor) { return tensor.to(own_device); }
at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

void on_ranks(int ranks, const std::function<void(World)>& body) {
  is_on_sim() ? on_sim(ranks, body) : run_threads(ranks, body);
}

void on_sim(int ranks, const std::function<void(World)>& body) {
  const std::string reports = reports_on_sim(ranks, StreamFault::kNone, body);
  EXPECT_EQ(reports, "");
}

std::string reports_on_sim(int ranks, StreamFault fault, const std::function<void(World)>& body) {
  sim::start({.mode = sim::mode_of_environment()});
  sim::take_reports();
  run_threads(ranks, [&](const World& host) {
    const OnDevice on_device(host.rank());
    body(World(make_stream_link(host.link(), host.rank(), fault), host.local_rank(),
               host.local_size()));
  });
  std::string text;
  for (const sim::Report& report : sim::take_reports()) {
    text += report.text + "\n";
  }
  return text;
}

}  // namespace fsdp::test
