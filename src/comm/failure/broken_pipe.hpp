// SPDX-License-Identifier: Apache-2.0
/// Gloo, and the server of TCPStore, write to sockets whose other end may be gone, without
/// MSG_NOSIGNAL. Where a program has left SIGPIPE at its default, a rank would die of it without a
/// word (Python programs ignore the signal, so LibTorch's own users do not see it).
#pragma once

#include <csignal>
#include <ctime>

namespace fsdp::comm::detail {

/// Keeps SIGPIPE from this thread while it lives, and for good from the threads that are started
/// meanwhile. The program keeps the signal for its own writes: nobody reads its output, say.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    if (::sigismember(&before_, SIGPIPE) == 0) {
      // One that came meanwhile would be delivered the moment it is let through.
      const timespec at_once{};
      while (::sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
      }
      ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace fsdp::comm::detail
