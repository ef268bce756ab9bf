// SPDX-License-Identifier: Apache-2.0
/// The main() of every test binary: each test runs under a watchdog that names it and aborts, so
/// that a hang is a failure with a stack and not a silent time-out.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr std::chrono::seconds kLimit(60 * FSDP_TEST_TIME_FACTOR);

class Watchdog : public testing::EmptyTestEventListener {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void OnTestStart(const testing::TestInfo& info) override {
    set(std::string(info.test_suite_name()) + "." + info.name());
  }
  void OnTestEnd(const testing::TestInfo&) override { set(""); }

  void set(std::string name) {
    std::lock_guard lock(mutex_);
    name_ = std::move(name);
    ++generation_;
    changed_.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      const long generation = generation_;
      const bool moved_on = changed_.wait_for(
          lock, kLimit, [&] { return stop_ || generation_ != generation; });
      if (!moved_on && !name_.empty()) {
        std::fprintf(stderr, "watchdog: %s is still running after %d s\n", name_.c_str(),
                     static_cast<int>(kLimit.count()));
        std::abort();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_;
  long generation_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return RUN_ALL_TESTS();
}
