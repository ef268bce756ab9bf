// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fsdp::shm {

/// Watches another process. Holds a pidfd, which a process that is given the same number later
/// does not inherit; where none can be had (no descriptor is free, a sandbox forbids it), the
/// number has to do.
class ProcessWatch {
 public:
  explicit ProcessWatch(std::int32_t process);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// One system call. Without a handle, a process that its parent has not reaped has not ended.
  bool has_ended() const;

 private:
  std::int32_t process_;
  int descriptor_;
};

/// How many cores the ranks may use together, as a count of those that any of them may use; a mask
/// travels through shared memory.
struct CoreMask {
  static constexpr int kWords = 16;
  std::uint64_t words[kWords] = {};
};
CoreMask own_cores();
int count(const CoreMask& mask);

}  // namespace fsdp::shm
