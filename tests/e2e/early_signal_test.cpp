// SPDX-License-Identifier: Apache-2.0
/// Asked with SIGUSR1 before it is ready to answer, the program goes on.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include "e2e/program.hpp"
#include "support/command.hpp"

namespace fsdp::test {
namespace {

/// What a process does with SIGUSR1: "SigIgn" or "SigCgt" as /proc names it, else empty.
std::string disposition(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    const std::string name = line.substr(0, line.find(':'));
    if ((name == "SigIgn" || name == "SigCgt") &&
        (std::strtoull(line.c_str() + name.size() + 1, nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0) {
      return name;
    }
  }
  return "";
}

TEST(EarlySignal, SIGUSR1IsIgnoredWhileLibTorchIsLoaded) {
  constexpr int kAttempts = 20;  // a busy machine may hide the moment
  int seen = 0;
  for (int attempt = 0; attempt < kAttempts && seen == 0; ++attempt) {
    RunningCommand launcher({fsdp_program(), "run", "-n", "2", "--", "/bin/sh", "-c", "exit 0"});
    std::string found;
    while ((found = disposition(launcher.pid())).empty() && !launcher.has_ended()) {
    }
    if (found == "SigIgn") {
      ++seen;
      while (!launcher.has_ended()) {
        launcher.send(SIGUSR1);
      }
    }
    const CommandResult result = launcher.wait();
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_GT(seen, 0) << "only a handler that is installed in main() was ever seen";
}

}  // namespace
}  // namespace fsdp::test
