// SPDX-License-Identifier: Apache-2.0
/// `fsdp train` when one of its ranks dies or stops at any moment: every other rank ends in time,
/// with one message that names it, by its own exit code, and all tell the same first cause.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <sstream>

#include "e2e/program.hpp"
#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr const char* kDirectoryVariable = "FSDP_TEST_DIRECTORY";
constexpr seconds kTimeout{3};
/// What the issue of a message may add to the time-out, and what a loaded machine may add to that.
constexpr seconds kPatience{2};
constexpr seconds kSlowMachine{6};
/// Most of a run of so many steps lies in this window after the start.
constexpr milliseconds kWindow{2600};

/// The number of random moments for each rank and signal, also set by FSDP_TEST_MOMENTS.
int moments() {
  const char* text = std::getenv("FSDP_TEST_MOMENTS");
  return text == nullptr ? 1 : std::atoi(text);
}

/// Set by FSDP_TEST_TRANSPORT.
std::string transport() {
  const char* text = std::getenv("FSDP_TEST_TRANSPORT");
  return text == nullptr ? "auto" : text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// The messages of the program itself.
std::vector<std::string> messages(const std::string& output) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(output)) {
    if (line.rfind("fsdp: rank ", 0) == 0) {
      found.push_back(line);
    }
  }
  return found;
}

class KilledRank : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  KilledRank() { directory_.write("text", sample_text(20000)); }

  /// In the folder of the test that started the ranks, not in one of the rank's own.
  std::string path(const std::string& name) const {
    const char* shared = std::getenv(kDirectoryVariable);
    return shared == nullptr ? directory_.path(name) : shared + ("/" + name);
  }

  std::vector<ProcessResult> train(const Disturbance& disturbance) {
    const std::vector<std::string> arguments =
        std::vector<std::string>{fsdp_program()} +
        laid_over(
            tiny_training(path("text"), path("out")),
            {"--global-batch", "6", "--steps", "500", "--sample", "0", "--transport", transport()});
    return run_processes(kRanks, "train",
                         [&](int) {
                           std::vector<char*> argv;
                           for (const std::string& argument : arguments) {
                             argv.push_back(const_cast<char*>(argument.c_str()));
                           }
                           argv.push_back(nullptr);
                           ::execv(argv.front(), argv.data());
                           std::perror("execv");
                         },
                         {.limit = seconds(40),
                          .disturbance = disturbance,
                          .environment = {{"FSDP_TIMEOUT", std::to_string(kTimeout.count())},
                                          {kDirectoryVariable, directory_.path("")}}});
  }

  TemporaryDirectory directory_;
};

TEST_P(KilledRank, Fault009_AllOthersEndInTimeAndNameIt) {
  const int rank = std::get<0>(GetParam());
  const int signal = std::get<1>(GetParam());
  std::mt19937 random(std::random_device{}());
  const milliseconds after(
      std::uniform_int_distribution<>(50, static_cast<int>(kWindow.count()))(random));
  SCOPED_TRACE("rank " + std::to_string(rank) + " gets signal " + std::to_string(signal) +
               " after " + std::to_string(after.count()) + " ms");
  const auto results = train({.rank = rank, .signal = signal, .after = after});
  if (results[static_cast<std::size_t>(rank)].exit_code == 0) {
    return;  // it was done by then
  }
  for (int other = 0; other < kRanks; ++other) {
    const ProcessResult& result = results[static_cast<std::size_t>(other)];
    if (other == rank || result.exit_code == 0) {
      continue;  // the last one to leave may be done as well
    }
    SCOPED_TRACE("on rank " + std::to_string(other) + ":\n" + result.output);
    EXPECT_FALSE(result.killed_by_test);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_LT(result.duration, after + kTimeout + kPatience + in_time(kSlowMachine));
    const auto told = messages(result.output);
    ASSERT_EQ(told.size(), 1U);
    EXPECT_THAT(told.front(), testing::ContainsRegex("([Rr]ank|missing:) " + std::to_string(rank)));
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, int, int>>& tested) {
  const auto& [rank, signal, moment] = tested.param;
  return std::string(signal == SIGKILL ? "Dies" : "Stops") + std::to_string(rank) + "Moment" +
         std::to_string(moment);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank,
                         testing::Combine(testing::Range(0, kRanks),
                                          testing::Values(SIGKILL, SIGSTOP),
                                          testing::Range(0, moments())),
                         name_of);

}  // namespace
}  // namespace fsdp::test
