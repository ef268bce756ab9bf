// SPDX-License-Identifier: Apache-2.0
#include "launch/stop_signals.hpp"

#include <atomic>
#include <cerrno>

namespace fsdp::launch::detail {
namespace {

// All that a handler touches.
std::atomic<const Guardian*> current_guardian{nullptr};
std::atomic<int> first_stop{0};
/// A stop that the guardian's channel had no room for.
std::atomic<int> unsent_stop{0};
static_assert(std::atomic<const Guardian*>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

bool send(const GuardianOrder& order) {
  const int saved = errno;
  const Guardian* guardian = current_guardian.load();
  const bool is_sent = guardian == nullptr || guardian->send(order);
  errno = saved;
  return is_sent;
}

void send_stop(int signal) {
  if (!send({.signal = signal, .is_stop = true})) {
    int none = 0;
    if (signal == SIGKILL) {
      unsent_stop.store(signal);
    } else {
      unsent_stop.compare_exchange_strong(none, signal);
    }
  }
}

void handle_stop(int signal) {
  int none = 0;
  const bool is_first = first_stop.compare_exchange_strong(none, signal);
  send_stop(!is_first && signal == SIGINT ? SIGKILL : signal);
}

/// Where there is no room, the ranks have enough requests to answer.
void handle_request(int signal) { send({.signal = signal, .is_stop = false}); }

void install(int signal, void (*handler)(int), struct sigaction& old) {
  struct sigaction action{};
  action.sa_handler = handler;
  ::sigaction(signal, &action, &old);
}

}  // namespace

StopSignals::StopSignals() {
  first_stop.store(0);
  unsent_stop.store(0);
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
    send_stop(signal);
  }
}

void StopSignals::send_again() {
  if (const int signal = unsent_stop.exchange(0)) {
    send_stop(signal);
  }
}

void StopSignals::stop(int signal, int for_ranks) {
  int none = 0;
  if (first_stop.compare_exchange_strong(none, signal)) {
    send_stop(for_ranks);
  }
}

int StopSignals::stopped_by() { return first_stop.load(); }

}  // namespace fsdp::launch::detail
