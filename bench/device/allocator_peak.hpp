// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace bench {

/// The most that LibTorch's allocator has handed out on a device; nothing where it does not count.
inline std::optional<std::int64_t> allocator_peak_bytes(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (device.is_cpu() || allocator == nullptr) {
    return std::nullopt;
  }
  const auto stats = allocator->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .peak;
}

}  // namespace bench
