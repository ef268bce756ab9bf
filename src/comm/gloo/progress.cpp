// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/progress.hpp"

#include <ATen/core/grad_mode.h>
#include <pthread.h>

#include <utility>

#include "comm/dispatch_guard.hpp"
#include "comm/failure/broken_pipe.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

class Progress::Step {
 public:
  explicit Step(std::function<void()> act) : act_(std::move(act)) {}

  void run() {
    try {
      act_();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void end(std::exception_ptr error = nullptr) {
    error_ = error ? std::move(error) : error_;
    act_ = nullptr;
    has_ended_ = true;
  }
  bool has_ended() const { return has_ended_; }
  const std::exception_ptr& error() const { return error_; }

 private:
  std::function<void()> act_;
  std::exception_ptr error_;
  bool has_ended_ = false;  ///< under the lock
};

namespace {

std::exception_ptr void_step() {
  return std::make_exception_ptr(
      Error(ErrorCode::kPeerFailed, "the group has recovered since this collective was started"));
}

}  // namespace

Progress::Progress() {
  const NoBrokenPipe no_pipe;  // a step sends
  thread_ = std::thread([this] { run_steps(); });
}

Progress::~Progress() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  begin_.notify_all();
  thread_.join();
}

Progress::StepPointer Progress::start(std::function<void()> act) {
  auto step = std::make_shared<Step>(std::move(act));
  {
    std::lock_guard lock(mutex_);
    if (is_stopped_) {
      step->end(void_step());
      return step;
    }
    steps_.push_back(step);
  }
  begin_.notify_one();
  return step;
}

void Progress::run_steps() {
  ::pthread_setname_np(::pthread_self(), "fsdp-progress");
  const DispatchGuard guard;
  const at::NoGradGuard no_grad;
  Lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return is_ending_ || !steps_.empty(); });
    if (steps_.empty()) {
      return;
    }
    const StepPointer step = steps_.front();
    lock.unlock();
    step->run();
    lock.lock();
    step->end();
    steps_.pop_front();
    if (awaited_ == step.get()) {  // not left to who awaits it: the next step begins at once
      awaited_ = nullptr;
      deadline_ = kNoDeadline;
    }
    ended_.notify_all();
  }
}

void Progress::await_end(Lock& lock, const Step& step, Clock::time_point deadline) {
  if (!step.has_ended()) {
    awaited_ = &step;
    deadline_ = deadline;
    ended_.wait(lock, [&] { return step.has_ended(); });
  }
}

void Progress::await(const StepPointer& step, Clock::time_point deadline) {
  Lock lock(mutex_);
  await_end(lock, *step, deadline);
  if (step->error()) {
    std::rethrow_exception(step->error());
  }
}

void Progress::await_all(Clock::time_point deadline) {
  Lock lock(mutex_);
  if (!steps_.empty()) {
    const StepPointer last = steps_.back();
    await_end(lock, *last, deadline);
  }
}

void Progress::cancel(const StepPointer& step) noexcept {
  Lock lock(mutex_);
  if (!steps_.empty() && steps_.front() != step && std::erase(steps_, step) > 0) {
    step->end();
  }
  await_end(lock, *step, Clock::now());
}

void Progress::stop() noexcept {
  Lock lock(mutex_);
  is_stopped_ = true;
  while (steps_.size() > 1) {
    steps_.back()->end(void_step());
    steps_.pop_back();
  }
  if (!steps_.empty()) {
    const StepPointer running = steps_.front();
    await_end(lock, *running, Clock::now());
  }
}

}  // namespace fsdp::comm::detail
