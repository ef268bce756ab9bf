// SPDX-License-Identifier: Apache-2.0
/// The main() of every test binary: each test runs under a watchdog that names it and aborts, so
/// that a hang is a failure with a stack and not a silent time-out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace {

constexpr unsigned kLimitSeconds = 60 * FSDP_TEST_TIME_FACTOR;

/// What the watchdog says of the current test.
std::string words;

void end_test(int) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, words.data(), words.size());
  std::abort();
}

/// An alarm, no thread: a child of a process with several threads is half-blind to the thread
/// sanitizer, which then holds signals back. A child does not inherit the alarm.
class Watchdog : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override {
    words = std::string("watchdog: ") + info.test_suite_name() + "." + info.name() +
            " is still running after " + std::to_string(kLimitSeconds) + " s\n";
    ::alarm(kLimitSeconds);
  }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  struct sigaction action{};
  action.sa_handler = end_test;
  ::sigaction(SIGALRM, &action, nullptr);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return RUN_ALL_TESTS();
}
