// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.hpp"

#include <utility>

#include <torch/csrc/distributed/c10d/Work.hpp>

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

void Watchdog::begin(c10::intrusive_ptr<c10d::Work> work, Clock::time_point deadline) {
  std::lock_guard lock(mutex_);
  work_ = std::move(work);
  began_ = Clock::now();
  deadline_ = deadline;
  verdict_ = Verdict::kNothing;
}

Watchdog::Verdict Watchdog::end() {
  std::lock_guard lock(mutex_);
  work_.reset();
  return verdict_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [&] { return is_stopping_; })) {
    if (!work_ || verdict_ != Verdict::kNothing) {
      continue;
    }
    const auto now = Clock::now();
    if (board_.has_failure()) {
      verdict_ = Verdict::kTold;
    } else if (now >= deadline_) {
      verdict_ = Verdict::kTimeout;
    } else if (now - began_ >= kPatience) {
      board_.look_soon();
    }
    if (verdict_ != Verdict::kNothing) {
      work_->abort();
    }
  }
}

}  // namespace fsdp::comm::detail
