// SPDX-License-Identifier: Apache-2.0
#include "launch/own_process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace fsdp::launch::detail {

void open_standard_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (::fcntl(number, F_GETFD) < 0) {
      ::open("/dev/null", O_RDWR);  // takes the lowest number that is free: this one
    }
  }
}

std::optional<rlimit> raise_open_files(int ranks) {
  constexpr rlim_t kOwn = 256;
  constexpr rlim_t kEach = 8;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  const rlim_t needed = kOwn + kEach * static_cast<rlim_t>(ranks);
  if (limit.rlim_cur >= needed) {
    return std::nullopt;
  }
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

bool is_foreign_terminal(int descriptor) {
  return ::isatty(descriptor) != 0 && ::tcgetpgrp(descriptor) != ::getpgrp();
}

}  // namespace fsdp::launch::detail
