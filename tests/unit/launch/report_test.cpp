// SPDX-License-Identifier: Apache-2.0
#include "launch/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

namespace fsdp::launch::detail {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Report, SuccessIsSilent) {
  EXPECT_EQ(describe_ends({{.rank = 1}, {.rank = 0}}, 0), "");
  EXPECT_FALSE(find_first_failure({{.rank = 1}, {.rank = 0}}));
}

TEST(Report, TheFirstInTimeIsToBlame) {
  const std::vector<RankEnd> ends{
      {.rank = 2}, {.rank = 3, .exit_code = 7}, {.rank = 0, .exit_code = 1}};
  EXPECT_EQ(find_first_failure(ends), 1u);
}

TEST(Report, ARankThatNamesAnotherCauseComesAfterTheCause) {
  for (const char* words : {"what():  [peer failed] all-gather #3", "fsdp: [time-out] waited 5 s",
                            "Connection closed by peer [127.0.0.1]:4"}) {
    const std::vector<RankEnd> ends{
        {.rank = 0, .exit_code = 1, .last_lines = {"", words}},
        {.rank = 1, .exit_code = 128 + SIGABRT, .signal = SIGABRT, .last_lines = {words}},
        {.rank = 2, .exit_code = 3, .last_lines = {"boom"}}};
    EXPECT_EQ(find_first_failure(ends), 2u) << words;
    EXPECT_THAT(
        describe_ends(ends, 0),
        StartsWith("fsdp run: rank 2 exited with code 3, the first to fail; its last lines:\n"
                   "  | boom\n"
                   "fsdp run: rank 0 exited with code 1, naming another rank's failure\n"));
  }
}

TEST(Report, ARankThatWasToldToStopComesLast) {
  const std::vector<RankEnd> ends{{.rank = 0, .exit_code = 1, .was_asked_to_stop = true},
                                  {.rank = 1, .exit_code = 1, .last_lines = {"[peer failed] x"}}};
  EXPECT_EQ(find_first_failure(ends), 1u);
}

TEST(Report, ManyRanksShareLinesAndTwentyLinesHoldAll) {
  std::vector<RankEnd> ends{{.rank = 5, .exit_code = 1, .last_lines = {}}};
  for (int i = 0; i < 20; ++i) {
    ends[0].last_lines.push_back("line " + std::to_string(i));
  }
  for (int rank = 0; rank < 64; ++rank) {
    if (rank != 5) {
      ends.push_back({.rank = rank,
                      .exit_code = rank == 9 ? 0 : 128 + SIGTERM,
                      .signal = rank == 9 ? 0 : SIGTERM,
                      .was_asked_to_stop = true});
    }
  }
  const std::string text = describe_ends(ends, 0);
  EXPECT_THAT(text, HasSubstr("fsdp run: ranks 0-4, 6-8, 10-63 died of signal 15"));
  EXPECT_THAT(text, HasSubstr("fsdp run: rank 9 exited with code 0"));
  EXPECT_THAT(text, HasSubstr("  | line 19\nfsdp run: "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST(Report, AStopFromOutsideBlamesNobody) {
  const std::vector<RankEnd> ends{
      {.rank = 0, .exit_code = 128 + SIGINT, .signal = SIGINT, .was_asked_to_stop = true},
      {.rank = 1, .was_asked_to_stop = true}};
  EXPECT_EQ(describe_ends(ends, SIGINT),
            "fsdp run: stopped by signal 2 (Interrupt)\n"
            "fsdp run: rank 0 died of signal 2 (Interrupt), told to stop\n"
            "fsdp run: rank 1 exited with code 0, told to stop\n");
}

}  // namespace
}  // namespace fsdp::launch::detail
