// SPDX-License-Identifier: Apache-2.0
/// A copier as an accelerator's: copies happen on another thread, some time after they were asked
/// for. What is read too early is old.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fsdp/engine/offload.hpp"

namespace fsdp::test {

class SlowCopier : public Copier {
 public:
  /// Called on the thread of start() and wait(), with "start" or "wait" and the ticket.
  using Observer = std::function<void(const char* what, std::uint64_t ticket)>;

  explicit SlowCopier(std::chrono::milliseconds latency, Observer observer = {})
      : latency_(latency), observer_(std::move(observer)), thread_([this] { run(); }) {}
  ~SlowCopier() override {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  SlowCopier(const SlowCopier&) = delete;
  SlowCopier& operator=(const SlowCopier&) = delete;

  std::uint64_t start(at::Tensor dst, at::Tensor src) override {
    if (!dst.is_contiguous() || !src.is_contiguous() || dst.numel() != src.numel() ||
        dst.scalar_type() != src.scalar_type()) {
      throw std::logic_error("the copier was given tensors that do not match");
    }
    std::uint64_t ticket = 0;
    {
      std::lock_guard lock(mutex_);
      ticket = ++started_;
      copies_.push_back(
          {std::chrono::steady_clock::now() + latency_, std::move(dst), std::move(src), ticket});
    }
    changed_.notify_all();
    observe("start", ticket);
    return ticket;
  }

  void wait(std::uint64_t ticket) override {
    observe("wait", ticket);
    std::unique_lock lock(mutex_);
    const bool fails = ++waits_ == fail_at_;
    changed_.wait(lock, [&] { return done_ >= ticket; });
    if (fails) {
      throw std::runtime_error("the transfer failed");
    }
  }

  /// The n-th wait() from now on throws.
  void fail_at(int n) {
    std::lock_guard lock(mutex_);
    fail_at_ = waits_ + n;
  }
  /// Transfers that were started and not waited for.
  int left() {
    std::lock_guard lock(mutex_);
    return static_cast<int>(started_) - waits_;
  }

 private:
  struct Copy {
    std::chrono::steady_clock::time_point due;
    at::Tensor dst, src;
    std::uint64_t ticket;
  };

  void observe(const char* what, std::uint64_t ticket) {
    if (observer_) {
      observer_(what, ticket);
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || !copies_.empty(); });
      if (is_over_) {
        return;
      }
      const Copy copy = copies_.front();
      copies_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(copy.due);
      if (copy.src.nbytes() > 0) {
        std::memcpy(copy.dst.data_ptr(), copy.src.const_data_ptr(), copy.src.nbytes());
      }
      lock.lock();
      done_ = copy.ticket;
      changed_.notify_all();
    }
  }

  std::chrono::milliseconds latency_;
  Observer observer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  std::uint64_t started_ = 0, done_ = 0;
  int waits_ = 0;
  int fail_at_ = -1;
  bool is_over_ = false;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace fsdp::test
