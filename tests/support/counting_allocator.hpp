// SPDX-License-Identifier: Apache-2.0
/// An allocator under LibTorch that counts every byte of CPU tensor memory, as a second opinion on
/// the engine's ledger.
#pragma once

#include <cstdint>

namespace fsdp::test {

struct AllocatorCounts {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;   ///< since the last reset
  std::int64_t allocations = 0;  ///< since the last reset
};

/// Installs it for the rest of the process; tensors made before are not counted.
void install_counting_allocator();
AllocatorCounts allocator_counts();
/// Sets the peak to what is live and the number of allocations to zero.
void reset_allocator_counts();

}  // namespace fsdp::test
