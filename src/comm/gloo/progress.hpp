// SPDX-License-Identifier: Apache-2.0
/// What makes collectives of several steps go on while the caller computes: a thread that runs
/// their steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

// NOTE [the progress thread]
// One a rank and generation. It runs what collectives do inside a host, in the order in which they
// were started, so that all ranks of a host come to each other in one order, whenever their callers
// wait. It sleeps when there is nothing to do, and runs on the cores of the thread that started it:
// the rank's own, as Gloo's threads do.
//
// Nobody may be waiting for what it does, and then there is no time-out: peers may compute for as
// long as they like before they start a collective. The caller's wait brings one, for the step that
// it is about and for all before it.

/// *Thread safety*: one thread starts and awaits; the steps run on another one.
class Progress {
 public:
  class Step;
  using StepPointer = std::shared_ptr<Step>;

  Progress();
  /// After the last step.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Runs `act` after all that was started before. `act` looks at deadline() where it waits.
  StepPointer start(std::function<void()> act);
  /// Until the step has ended, with `deadline` for its waits. @blocks @throws what it has thrown
  void await(const StepPointer& step, Clock::time_point deadline);
  /// The same for all steps that were started; what they throw is for those who await them.
  void await_all(Clock::time_point deadline);
  /// Starts a step and awaits it. @blocks @throws what `act` throws
  void run(std::function<void()> act, Clock::time_point deadline) {
    await(start(std::move(act)), deadline);
  }

  /// A step that nobody will await: does not begin any more, or ends at its next wait. @blocks
  void cancel(const StepPointer& step) noexcept;
  /// The same for all steps, and for all to come; who awaits them gets an Error kPeerFailed.
  void stop() noexcept;

  /// When waits of the running step are over; kNoDeadline while nobody awaits it.
  const std::atomic<Clock::time_point>& deadline() const { return deadline_; }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run_steps();
  void await_end(Lock& lock, const Step& step, Clock::time_point deadline);

  std::atomic<Clock::time_point> deadline_{kNoDeadline};
  std::mutex mutex_;
  std::condition_variable begin_;  ///< there is a step, or no more will come
  std::condition_variable ended_;
  std::deque<StepPointer> steps_;  ///< the first one runs, or is about to
  const Step* awaited_ = nullptr;  ///< whose end ends `deadline_`
  bool is_stopped_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace fsdp::comm::detail
