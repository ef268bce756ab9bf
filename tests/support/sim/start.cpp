// SPDX-License-Identifier: Apache-2.0
#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim {

namespace {

Config configured;

void print_backtrace(int signal) {
  static constexpr char kText[] = "SIGSEGV: the host touched device memory, at\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  constexpr int kFrames = 40;
  std::array<void*, kFrames> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), kFrames), STDERR_FILENO);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// The rank that has a device.
class Holders {
 public:
  void take(int device, int rank) {
    TORCH_CHECK_VALUE(device >= 0 && device < kDevices, "rank ", rank, " asks for sim:", device,
                      ", there are ", kDevices, " devices");
    const std::lock_guard lock(mutex_);
    std::optional<int>& holder = of(device);
    TORCH_CHECK_VALUE(!holder.has_value(), "rank ", rank, " asks for sim:", device, ", which rank ",
                      *holder,
                      " of this process has: autograd has one thread per device, so that of two "
                      "ranks on one device one backward waits for the other. A device per rank");
    holder = rank;
  }
  void give_back(int device) {
    const std::lock_guard lock(mutex_);
    of(device).reset();
  }

 private:
  std::optional<int>& of(int device) { return ranks_[static_cast<std::size_t>(device)]; }

  std::mutex mutex_;
  std::array<std::optional<int>, kDevices> ranks_;
};

Holders& holders() {
  static Holders all;
  return all;
}

}  // namespace

const Config& detail::config() { return configured; }
Mode mode() { return configured.mode; }

void start(const Config& config) {
  configured = config;
  static std::once_flag once;
  std::call_once(once, [] {
    detail::map_memory();
    detail::register_streams();
    detail::register_hooks();
    detail::register_operators();
    detail::watch_host();
    std::signal(SIGSEGV, &print_backtrace);
  });
}

Mode mode_of_environment() {
  const char* mode = std::getenv("FSDP_SIM_MODE");
  return mode != nullptr && std::string_view(mode) == "late" ? Mode::kLate : Mode::kImmediate;
}

Claim::Claim(int device, int rank) : device_(device) {
  holders().take(device, rank);
  detail::set_current_device(device);
}

Claim::~Claim() { holders().give_back(device_); }

}  // namespace fsdp::test::sim
