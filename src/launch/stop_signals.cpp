// SPDX-License-Identifier: Apache-2.0
#include "launch/stop_signals.hpp"

#include <atomic>
#include <cerrno>

namespace fsdp::launch::detail {
namespace {

// All that a handler touches.
std::atomic<const Guardian*> current_guardian{nullptr};
std::atomic<int> first_stop{0};
static_assert(std::atomic<const Guardian*>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

void send(const GuardianOrder& order) {
  const int saved = errno;
  if (const Guardian* guardian = current_guardian.load()) {
    guardian->send(order);
  }
  errno = saved;
}

void handle_stop(int signal) {
  int none = 0;
  const bool is_first = first_stop.compare_exchange_strong(none, signal);
  send({.signal = !is_first && signal == SIGINT ? SIGKILL : signal, .is_stop = true});
}

void handle_request(int signal) { send({.signal = signal, .is_stop = false}); }

void install(int signal, void (*handler)(int), struct sigaction& old) {
  struct sigaction action{};
  action.sa_handler = handler;
  ::sigaction(signal, &action, &old);
}

}  // namespace

StopSignals::StopSignals() {
  first_stop.store(0);
  install(SIGINT, handle_stop, old_interrupt_);
  install(SIGTERM, handle_stop, old_terminate_);
  install(SIGHUP, handle_stop, old_hangup_);
  if (ignores_hangup()) {
    ::sigaction(SIGHUP, &old_hangup_, nullptr);
  }
  install(SIGPIPE, SIG_IGN, old_pipe_);
  install(SIGUSR1, handle_request, old_user_);
}

StopSignals::~StopSignals() {
  connect(nullptr);
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  ::sigaction(SIGHUP, &old_hangup_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  ::sigaction(SIGUSR1, &old_user_, nullptr);
}

void StopSignals::connect(const Guardian* guardian) {
  current_guardian.store(guardian);
  if (const int signal = guardian == nullptr ? 0 : first_stop.load()) {
    send({.signal = signal, .is_stop = true});
  }
}

void StopSignals::stop(int signal, int for_ranks) {
  int none = 0;
  if (first_stop.compare_exchange_strong(none, signal)) {
    send({.signal = for_ranks, .is_stop = true});
  }
}

int StopSignals::stopped_by() { return first_stop.load(); }

}  // namespace fsdp::launch::detail
