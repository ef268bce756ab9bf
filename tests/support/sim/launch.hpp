// SPDX-License-Identifier: Apache-2.0
/// Kernels of one's own on a simulated device, for transports.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/sim/sim.hpp"

namespace fsdp::test::sim {

inline constexpr int kStreamsPerDevice = 16;  ///< the first is the default stream
inline constexpr int kStreams = kDevices * kStreamsPerDevice;

/// By stream, how many of its kernels are known to have come before.
using Clock = std::array<std::uint64_t, kStreams>;

/// What a kernel reads or writes.
struct Access {
  const void* begin = nullptr;  ///< device or pinned memory
  std::size_t bytes = 0;
  bool writes = false;
};

/// A stream's number among those of all devices; c10::Stream::native_handle() is this plus one.
int stream_number(const c10::Stream& stream);
c10::Stream stream_of(int number);

/// Enqueues `body` on a stream. It uses addresses of kernel_view() only, and must not launch.
/// In Mode::kImmediate it has run when this returns, and may throw.
void launch(const std::string& name, int stream, const std::vector<Access>& accesses,
            std::function<void()> body);

/// Makes everything that `stream` gets from now on come after what `clock` has seen: a rank's part
/// of a collective comes after those of its peers.
Clock clock_of(int stream);
void join(int stream, const Clock& clock);

/// The address at which a kernel reads and writes device memory; others are returned as they are.
void* kernel_view(const void* address);

}  // namespace fsdp::test::sim
