// SPDX-License-Identifier: Apache-2.0
#include "shm/process.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <csignal>

namespace fsdp::shm {

ProcessWatch::ProcessWatch(std::int32_t process)
    : process_(process), descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

bool ProcessWatch::has_ended() const {
  if (descriptor_ < 0) {
    return ::kill(process_, 0) != 0 && errno == ESRCH;
  }
  // Readable once the process has ended, reaped or not.
  pollfd watched{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

CoreMask own_cores() {
  CoreMask mask;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);
  for (int core = 0; core < CoreMask::kWords * 64 && core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) {
      mask.words[core / 64] |= std::uint64_t{1} << (core % 64);
    }
  }
  return mask;
}

int count(const CoreMask& mask) {
  int cores = 0;
  for (const std::uint64_t word : mask.words) {
    cores += std::popcount(word);
  }
  return cores;
}

}  // namespace fsdp::shm
