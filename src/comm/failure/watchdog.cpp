// SPDX-License-Identifier: Apache-2.0
#include "comm/failure/watchdog.hpp"

#include <utility>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/host_language.hpp"

namespace fsdp::comm::detail {

namespace {
/// Shorter waits are nothing to ask the store about.
constexpr Milliseconds kPatience{200};
}  // namespace

Watchdog::Watchdog(FailureBoard& board) : board_(board), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Watchdog::Wait::Wait(Watchdog& watchdog, c10::intrusive_ptr<c10d::Work> work,
                     const std::atomic<Clock::time_point>& deadline)
    : watchdog_(watchdog), work_(std::move(work)), deadline_(deadline) {
  std::lock_guard lock(watchdog_.mutex_);
  watchdog_.waits_.push_back(this);
}

Watchdog::Verdict Watchdog::Wait::end() {
  std::lock_guard lock(watchdog_.mutex_);
  std::erase(watchdog_.waits_, this);
  return verdict_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [&] { return is_stopping_; })) {
    if (waits_.empty()) {
      continue;
    }
    // Without the lock, in which an interpreter's own lock must not be waited for.
    lock.unlock();
    const bool is_interrupted = base::host_wants_out();
    lock.lock();
    for (Wait* wait : waits_) {
      look_at(*wait, is_interrupted);
    }
  }
}

void Watchdog::look_at(Wait& wait, bool is_interrupted) {
  if (wait.verdict_ != Verdict::kNothing) {
    return;
  }
  const auto now = Clock::now();
  if (board_.has_failure()) {
    wait.verdict_ = Verdict::kTold;
  } else if (now >= wait.deadline_.load()) {
    wait.verdict_ = Verdict::kTimeout;
  } else if (is_interrupted) {
    wait.verdict_ = Verdict::kInterrupted;
  } else if (now - wait.began_ >= kPatience) {
    board_.look_soon();
  }
  if (wait.verdict_ != Verdict::kNothing) {
    wait.work_->abort();
  }
}

}  // namespace fsdp::comm::detail
