// SPDX-License-Identifier: Apache-2.0
/// Mode::kLate: a thread per stream takes its kernels in their order, with delays between.
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

class Queue {
 public:
  void push(std::function<void()> work) {
    const std::lock_guard guard(mutex_);
    work_.push_back(std::move(work));
    if (!std::exchange(has_thread_, true)) {
      std::thread([this] { run(); }).detach();
    }
    changed_.notify_all();
  }
  void wait_until_idle() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return work_.empty(); });
  }
  bool is_idle() {
    const std::lock_guard guard(mutex_);
    return work_.empty();
  }

 private:
  [[noreturn]] void run() {
    constexpr unsigned kOneIn = 4;  // kernels wait, the others follow at once
    std::mt19937 random(std::random_device{}());
    is_in_kernel() = true;
    while (true) {
      std::unique_lock guard(mutex_);
      changed_.wait(guard, [&] { return !work_.empty(); });
      std::function<void()> work = work_.front();
      guard.unlock();
      const auto longest = static_cast<unsigned>(config().longest_delay_us);
      if (longest > 0 && random() % kOneIn == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
      }
      work();
      work = nullptr;
      guard.lock();
      work_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool has_thread_ = false;
};

Queue& queue(int stream) {
  static auto* queues = new std::array<Queue, kStreams>;  // their threads never end
  return (*queues)[static_cast<std::size_t>(stream)];
}

}  // namespace

void enqueue(int stream, std::function<void()> work) { queue(stream).push(std::move(work)); }
bool is_idle(int stream) { return queue(stream).is_idle(); }
void wait_until_idle(int stream) { queue(stream).wait_until_idle(); }

}  // namespace fsdp::test::sim::detail
