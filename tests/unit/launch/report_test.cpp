// SPDX-License-Identifier: Apache-2.0
#include "launch/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "launch/rank_output.hpp"

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

/// Rank 0 took longer to write its error than its victims to end.
TEST(Report, Fault153_ACauseThatEndsAfterItsVictimsIsNamed) {
  const std::vector<std::string> lost{"what():  [peer failed] all-gather #3 \"w\" on rank 1"};
  const std::vector<RankEnd> ends{
      {.rank = 1, .exit_code = 1, .last_lines = lost},
      {.rank = 2, .exit_code = 128 + SIGTERM, .signal = SIGTERM, .was_asked_to_stop = true},
      {.rank = 0, .exit_code = 9, .was_asked_to_stop = true, .last_lines = {"what():  boom"}}};
  EXPECT_EQ(find_first_failure(ends), 2u);
  EXPECT_THAT(describe_ends(ends, 0),
              StartsWith("fsdp run: rank 0 exited with code 9, the first to fail; its last lines:\n"
                         "  | what():  boom\n"));
}

TEST(Report, Fault153_TheRankThatAVictimNamesIsTheFirst) {
  const std::vector<RankEnd> ends{
      {.rank = 1,
       .exit_code = 1,
       .last_lines = {"[peer failed] barrier #3; first failure: rank 2: an exception ended it"}},
      {.rank = 0, .exit_code = 1, .was_asked_to_stop = true, .last_lines = {"told"}},
      {.rank = 2, .exit_code = 128 + SIGKILL, .signal = SIGKILL, .was_asked_to_stop = true}};
  EXPECT_EQ(find_first_failure(ends), 2u);
}

/// Of a rank that is waited for in vain, a code after SIGTERM says nothing.
TEST(Report, ATimeOutIsNotTheFaultOfWhoeverWasToldToStop) {
  const std::vector<RankEnd> ends{
      {.rank = 0, .exit_code = 1, .last_lines = {"[time-out] barrier #3 waited 5 s"}},
      {.rank = 1, .exit_code = 1, .was_asked_to_stop = true, .last_lines = {"saved"}}};
  EXPECT_EQ(find_first_failure(ends), 0u);
}

TEST(Report, Fault153_ARankThatLeftEarlyWithCodeZeroIsNamed) {
  const std::vector<RankEnd> ends{
      {.rank = 1},
      {.rank = 0,
       .exit_code = 1,
       .last_lines = {"[peer failed] barrier #3 on rank 0 cannot complete: rank 1 has left the job "
                      "early and told no error"}}};
  EXPECT_THAT(describe_ends(ends, 0),
              StartsWith("fsdp run: rank 0 exited with code 1, the first to fail, because rank 1 "
                         "had left the job early, with code 0; its last lines:\n"));
}

TEST(Report, Fault153_TheFramesOfAStackAreOneLine) {
  LastLines last;
  last.add("terminate called after throwing an instance of 'c10::Error'");
  last.add("  what():  shapes differ");
  last.add("Exception raised from check at tensor.cpp:12 (most recent call first):");
  for (int frame = 0; frame < 60; ++frame) {
    last.add("frame #" + std::to_string(frame) + ": c10::fail() + 0x80 (0x7f in libc10.so)");
  }
  last.add("");
  last.add("C++ CapturedTraceback:");
  last.add("#4 c10::fail() from ??:0");
  last.add("#5 main from ??:0");
  last.add("#hashtag");
  EXPECT_THAT(last.lines(),
              testing::ElementsAre("terminate called after throwing an instance of 'c10::Error'",
                                   "  what():  shapes differ",
                                   "Exception raised from check at tensor.cpp:12 (most recent call "
                                   "first):",
                                   "(60 frames of a stack)", "",
                                   "C++ CapturedTraceback:", "(2 frames of a stack)", "#hashtag"));
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
