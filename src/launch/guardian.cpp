// SPDX-License-Identifier: Apache-2.0
#include "launch/guardian.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "fsdp/base/error.hpp"
#include "launch/guardian_process.hpp"

namespace fsdp::launch::detail {

Guardian::Guardian(const std::vector<RankCommand>& commands, Milliseconds grace) {
  std::array<int, 2> ends{};
  // A socket for packets: each message arrives whole, and a closed end is seen.
  FSDP_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
             ErrorCode::kIo, "cannot make a socket pair: ", std::strerror(errno));
  channel_.reset(ends[0]);
  base::Descriptor other_end(ends[1]);
  // The handlers of this process must not run in the guardian.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  second_pid_ = ::fork();
  if (second_pid_ == 0) {
    ::close(channel_.release());
    run_guardian(commands, grace, other_end.get());
  }
  const int cause = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  FSDP_CHECK(second_pid_ > 0, ErrorCode::kIo, "cannot start a process: ", std::strerror(cause));
  other_end.reset();
  GuardianEvent ready;
  ssize_t count = 0;
  do {
    count = ::recv(channel_.get(), &ready, sizeof(ready), 0);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(ready)) {
    pid_ = ready.pid;
  }  // else it was killed: receive() says so
}

Guardian::~Guardian() {
  channel_.reset();
  while (::waitpid(second_pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<GuardianEvent> Guardian::receive() {
  GuardianEvent event;
  ssize_t count = 0;
  do {
    count = ::recv(channel_.get(), &event, sizeof(event), MSG_DONTWAIT);
    // A guardian that ends with orders unread resets the channel. That is told once, and before
    // what it has reported, which is still there.
  } while (count < 0 && (errno == EINTR || errno == ECONNRESET));
  if (count == sizeof(event)) {
    return event;
  }
  is_lost_ = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  if (is_lost_) {
    pid_ = -1;
  }
  return std::nullopt;
}

bool Guardian::send(const GuardianOrder& order) const noexcept {
  if (const pid_t pid = pid_.load(); order.is_stop && pid > 0) {
    ::kill(pid, SIGCONT);
  }
  const ssize_t count = ::send(channel_.get(), &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT);
  return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS);
}

static_assert(std::atomic<pid_t>::is_always_lock_free, "send() is called in signal handlers");

}  // namespace fsdp::launch::detail
