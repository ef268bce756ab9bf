// SPDX-License-Identifier: Apache-2.0
/// Device memory in two mappings, and allocators that hand a freed block out again at once, to the
/// stream that it was allocated on, as the caching allocators of accelerators do.
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

constexpr std::size_t kDeviceBytes = std::size_t{kBytesPerDevice};  // of addresses
constexpr std::size_t kPinnedBytes = std::size_t{2} << 30;
constexpr std::size_t kGranule = 512;

char* device_base = nullptr;
char* kernel_base = nullptr;
char* pinned_base = nullptr;

struct Block {
  std::size_t bytes = 0;
  int stream = 0;            ///< that it was allocated on; of pinned memory 0
  std::uint64_t number = 0;  ///< anew each time it is handed out
  bool is_live = false;
  std::vector<int> users = {};  ///< streams that it was recorded for
  Clock freed_after = {};       ///< what those had been given when it was freed
  Clock freer_knew = {};        ///< of pinned memory: what the thread that freed it had waited for
};

/// *Thread safety*: under lock().
class Arena {
 public:
  void* allocate(char* base, std::size_t bytes, int stream) {
    bytes = std::max(kGranule, (bytes + kGranule - 1) / kGranule * kGranule);
    TORCH_CHECK_WITH(OutOfMemoryError, live_bytes_ + bytes <= limit_,
                     "the simulated device is out of memory: ", live_bytes_, " of ", limit_,
                     " bytes are in use and ", bytes, " were asked for");
    char* found = take_free(bytes, stream);
    if (found == nullptr) {
      TORCH_CHECK_WITH(OutOfMemoryError, used_ + bytes <= kDeviceBytes,
                       "the simulated device has no more addresses");
      found = base + used_;
      used_ += bytes;
    }
    live_bytes_ += bytes;
    blocks_[found] = {.bytes = bytes, .stream = stream, .number = ++numbers_, .is_live = true};
    return found;
  }

  void release(void* address) {
    Block& block = blocks_.at(static_cast<char*>(address));
    block.is_live = false;
    live_bytes_ -= block.bytes;
    for (const int user : block.users) {
      merge(block.freed_after, clock(user));
    }
    if (is_pinned_address(address)) {
      block.freer_knew = host_knowledge();
    }
    free_[{block.stream, block.bytes}].push_back(static_cast<char*>(address));
  }

  Block* find(const void* address) {
    const auto* at = static_cast<const char*>(address);
    auto next = blocks_.upper_bound(const_cast<char*>(at));
    if (next == blocks_.begin()) {
      return nullptr;
    }
    auto& [begin, block] = *std::prev(next);
    return at < begin + block.bytes && block.is_live ? &block : nullptr;
  }

  void set_limit(std::size_t bytes) { limit_ = bytes; }
  std::size_t live_bytes() const { return live_bytes_; }

 private:
  char* take_free(std::size_t bytes, int stream) {
    auto& free = free_[{stream, bytes}];
    for (auto it = free.rbegin(); it != free.rend(); ++it) {
      const Block& block = blocks_.at(*it);
      if (!block.users.empty() && is_late()) {
        continue;  // an allocator would ask its events; a fresh block is right as well
      }
      if (!block.users.empty()) {  // it has asked, and they had come to pass
        is_pinned_address(*it) ? host_has_seen(-1, block.freed_after)
                               : merge(clock(stream), block.freed_after);
      }
      if (is_pinned_address(*it)) {  // the allocator's lock hands it from thread to thread
        host_has_seen(-1, block.freer_knew);
      }
      char* found = *it;
      free.erase(std::next(it).base());
      return found;
    }
    return nullptr;
  }

  std::map<char*, Block> blocks_;
  std::map<std::pair<int, std::size_t>, std::vector<char*>> free_;  ///< by stream and bytes
  std::size_t used_ = 0, live_bytes_ = 0, limit_ = kDeviceBytes;
  static inline std::uint64_t numbers_ = 0;
};

// Never destroyed: static tensors may outlive them.
Arena& device_arena(int device) {
  static auto* arenas = new std::array<Arena, kDevices>;
  return (*arenas)[static_cast<std::size_t>(device)];
}
Arena& pinned_arena() {
  static auto* arena = new Arena;
  return *arena;
}
Arena& arena_of(const void* address) {
  return is_pinned_address(address) ? pinned_arena() : device_arena(device_of_address(address));
}

void free_block(void* address) {
  const auto held = lock();
  arena_of(address).release(address);
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const int device = current_device();
    if (bytes == 0) {
      return {nullptr, nullptr, [](void*) {}, sim::device(device)};
    }
    const auto held = lock();
    ++counts(device).allocations;
    void* data =
        device_arena(device).allocate(device_base + static_cast<std::size_t>(device) * kDeviceBytes,
                                      bytes, current_stream(device));
    return {data, data, &free_block, sim::device(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    default_copy_data(kernel_view(dst), kernel_view(src), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_use(data.get(), stream_number(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto held = lock();
    void* data = pinned_arena().allocate(pinned_base, bytes, 0);
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    default_copy_data(dst, src, bytes);
  }
};

char* map(int file, std::size_t bytes, int protection) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* at = mmap(nullptr, bytes, protection, flags | MAP_NORESERVE, file, 0);
  TORCH_CHECK(at != MAP_FAILED, "cannot map ", bytes, " bytes for the simulated devices");
  return static_cast<char*>(at);
}

}  // namespace

void map_memory() {
  const std::size_t bytes = kDeviceBytes * kDevices;
  const int file = memfd_create("sim_device", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0,
              "no memory for the simulated devices");
  device_base = map(file, bytes, PROT_NONE);
  kernel_base = map(file, bytes, PROT_READ | PROT_WRITE);
  pinned_base = map(-1, kPinnedBytes, PROT_READ | PROT_WRITE);
  close(file);
}

bool is_device_address(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return device_base != nullptr && at >= device_base && at < device_base + kDeviceBytes * kDevices;
}
bool is_pinned_address(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return pinned_base != nullptr && at >= pinned_base && at < pinned_base + kPinnedBytes;
}
int device_of_address(const void* address) {
  return static_cast<int>((static_cast<const char*>(address) - device_base) /
                          static_cast<std::ptrdiff_t>(kDeviceBytes));
}

std::uint64_t block_at(const void* address) {
  if (!is_device_address(address) && !is_pinned_address(address)) {
    return 0;
  }
  const Block* block = arena_of(address).find(address);
  return block == nullptr ? 0 : block->number;
}

void record_use(const void* address, int stream) {
  if (!is_device_address(address) && !is_pinned_address(address)) {
    return;
  }
  const auto held = lock();
  if (Block* block = arena_of(address).find(address)) {
    block->users.push_back(stream);
  }
}

c10::Allocator* device_allocator() {
  static auto* allocator = new DeviceAllocator;
  return allocator;
}
c10::Allocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

}  // namespace fsdp::test::sim::detail

namespace fsdp::test::sim {

void* kernel_view(const void* address) {
  auto* at = static_cast<char*>(const_cast<void*>(address));
  return detail::is_device_address(at) ? detail::kernel_base + (at - detail::device_base) : at;
}

void limit_memory(int device, std::int64_t bytes) {
  const auto held = detail::lock();
  detail::device_arena(device).set_limit(static_cast<std::size_t>(bytes));
}

Counts take_counts(int device) {
  const auto held = detail::lock();
  Counts taken = std::exchange(detail::counts(device), {});
  taken.live_bytes = static_cast<std::int64_t>(detail::device_arena(device).live_bytes());
  return taken;
}

}  // namespace fsdp::test::sim
