// SPDX-License-Identifier: Apache-2.0
#include "support/counting_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace fsdp::test {

namespace {

std::mutex mutex;
std::unordered_map<void*, std::int64_t> sizes;
AllocatorCounts counts;

void release(void* memory) {
  if (memory == nullptr) {
    return;
  }
  {
    std::lock_guard lock(mutex);
    auto found = sizes.find(memory);
    counts.live_bytes -= found->second;
    sizes.erase(found);
  }
  std::free(memory);
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, c10::kCPU};
    }
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::lock_guard lock(mutex);
    sizes[memory] = static_cast<std::int64_t>(bytes);
    counts.live_bytes += static_cast<std::int64_t>(bytes);
    counts.peak_bytes = std::max(counts.peak_bytes, counts.live_bytes);
    ++counts.allocations;
    return {memory, memory, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    std::memcpy(dst, src, bytes);
  }
};

}  // namespace

void install_counting_allocator() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

AllocatorCounts allocator_counts() {
  std::lock_guard lock(mutex);
  return counts;
}

void reset_allocator_counts() {
  std::lock_guard lock(mutex);
  counts.peak_bytes = counts.live_bytes;
  counts.allocations = 0;
}

}  // namespace fsdp::test
