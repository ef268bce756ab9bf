// SPDX-License-Identifier: Apache-2.0
#include "comm/failure/state_signal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <thread>

#include "comm/failure/collective_log.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::comm::detail {
namespace {

// A handler may do next to nothing: it wakes a thread that may do everything.
int wake_up = -1;

void handle(int) {
  const int cause = errno;
  const char byte = 0;
  [[maybe_unused]] const auto written = ::write(wake_up, &byte, 1);
  errno = cause;
}

void serve(int source) {
  char byte = 0;
  for (;;) {
    const ssize_t count = ::read(source, &byte, 1);
    if (count == 1) {
      print_collectives();
    } else if (count == 0 || errno != EINTR) {
      return;
    }
  }
}

void install() {
  struct sigaction current{};
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0 ||
      (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN)) {
    return;
  }
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    return;
  }
  ::fcntl(pipe[1], F_SETFL, O_NONBLOCK);
  wake_up = pipe[1];
  sigset_t all;
  sigset_t before;
  // Program signals belong to the threads of the program.
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(serve, pipe[0]).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

void print_collectives_on_signal() {
  static std::once_flag once;
  std::call_once(once, install);
}

}  // namespace fsdp::comm::detail
