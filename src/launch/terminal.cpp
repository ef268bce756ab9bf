// SPDX-License-Identifier: Apache-2.0
#include "launch/terminal.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace fsdp::launch::detail {

void Terminal::write(std::string_view text) {
  // A pipe that is ready takes this much without blocking (PIPE_BUF), so that a signal is noticed.
  constexpr std::size_t kPiece = 4096;
  constexpr int kPatienceMilliseconds = 100;
  while (!text.empty() && !is_broken_) {
    pollfd ready{descriptor_, POLLOUT, 0};
    if (::poll(&ready, 1, kPatienceMilliseconds) <= 0) {
      if (is_over_()) {
        return;
      }
      continue;
    }
    const ssize_t count = ::write(descriptor_, text.data(), std::min(text.size(), kPiece));
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EPIPE) {
      is_broken_ = true;
    } else if (errno != EINTR && errno != EAGAIN) {
      if (!has_complained_ && descriptor_ != STDERR_FILENO) {
        std::fprintf(stderr, "fsdp run: output is lost: %s\n", std::strerror(errno));
      }
      has_complained_ = true;
      return;
    }
  }
}

}  // namespace fsdp::launch::detail
