// SPDX-License-Identifier: Apache-2.0
#include "train/stop_request.hpp"

#include <time.h>

#include <atomic>
#include <cstdint>
#include <iterator>

namespace fsdp::train::detail {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT};
/// A terminal's Ctrl-C reaches a rank twice: by itself, and by way of the launcher.
constexpr std::int64_t kOneKeyPress_ms = 500;

// The only things the handler may touch.
std::atomic<int> requested{0};
std::atomic<std::int64_t> interrupted_ms{0};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void request_stop(int signal) {
  const std::int64_t before = interrupted_ms.load();
  if (signal == SIGINT && before != 0 && now_ms() - before > kOneKeyPress_ms) {
    ::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);  // as soon as the handler returns
  }
  if (signal == SIGINT && before == 0) {
    interrupted_ms.store(now_ms());
  }
  requested.store(signal);
}

}  // namespace

StopRequest::StopRequest() {
  requested.store(0);
  interrupted_ms.store(0);
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &before_[i]);
  }
}

StopRequest::~StopRequest() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
}

bool StopRequest::is_made() const { return requested.load() != 0; }

int StopRequest::signal() const {
  const int last = requested.load();
  return last == 0 ? SIGTERM : last;
}

}  // namespace fsdp::train::detail
