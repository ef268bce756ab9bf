// SPDX-License-Identifier: Apache-2.0
#include "fsdp/memory/ledger.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::memory {
namespace {

using ::testing::HasSubstr;

TEST(LedgerTest, LiveFollowsWhatIsAddedAndRemoved) {
  Ledger ledger;
  EXPECT_EQ(ledger.live().total(), 0);
  ledger.add(Kind::kShards, 100);
  ledger.add(Kind::kMoments, 200);
  ledger.add(Kind::kShards, 1);
  ledger.remove(Kind::kMoments, 150);
  Bytes expected;
  expected[Kind::kShards] = 101;
  expected[Kind::kMoments] = 50;
  EXPECT_EQ(ledger.live(), expected);
  EXPECT_EQ(ledger.live().total(), 151);
}

TEST(LedgerTest, ThePeakOfTheTotalIsNotTheSumOfThePeaks) {
  Ledger ledger;
  ledger.add(Kind::kGatherSlots, 100);
  ledger.remove(Kind::kGatherSlots, 100);
  ledger.add(Kind::kReduceBuffers, 70);
  ledger.remove(Kind::kReduceBuffers, 30);
  EXPECT_EQ(ledger.peak()[Kind::kGatherSlots], 100);
  EXPECT_EQ(ledger.peak()[Kind::kReduceBuffers], 70);
  EXPECT_EQ(ledger.peak().total(), 170);
  EXPECT_EQ(ledger.peak_total(), 100);
  EXPECT_EQ(ledger.live().total(), 40);
}

TEST(LedgerTest, NothingAndZeroBytesLeaveNoTrace) {
  Ledger ledger;
  ledger.add(Kind::kStaging, 0);
  ledger.remove(Kind::kStaging, 0);
  EXPECT_EQ(ledger.live(), Bytes{});
  EXPECT_EQ(ledger.peak(), Bytes{});
  EXPECT_EQ(ledger.peak_total(), 0);
}

TEST(LedgerTest, RemovingMoreThanThereIsIsAnInternalErrorThatNamesTheKind) {
  Ledger ledger;
  ledger.add(Kind::kGradShards, 10);
  ledger.add(Kind::kShards, 100);
  try {
    ledger.remove(Kind::kGradShards, 13);
    FAIL() << "the ledger went below zero";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.text(), HasSubstr("-3 bytes of gradient shards"));
  }
  EXPECT_EQ(ledger.live()[Kind::kGradShards], 10) << "a refused removal changes nothing";
}

TEST(LedgerTest, ThreadsLoseNoBytes) {
  Ledger ledger;
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&ledger] {
      for (int round = 0; round < kRounds; ++round) {
        ledger.add(Kind::kGatherSlots, 3);
        ledger.remove(Kind::kGatherSlots, 2);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(ledger.live()[Kind::kGatherSlots], kThreads * kRounds);
  EXPECT_GE(ledger.peak_total(), kThreads * kRounds);
  EXPECT_LE(ledger.peak_total(), kThreads * (kRounds + 2));
}

TEST(LedgerTest, EveryKindHasItsOwnName) {
  std::vector<std::string> names;
  for (int kind = 0; kind < kKinds; ++kind) {
    names.emplace_back(to_string(static_cast<Kind>(kind)));
    EXPECT_NE(names.back(), "unknown");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(LedgerTest, BytesReadWell) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536 * 1024), "1.50 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 50), "5120.00 TiB");
}

TEST(LedgerTest, TheTableLeavesOutWhatIsZeroAndEndsWithTheTotal) {
  Bytes bytes;
  bytes[Kind::kShards] = 2048;
  bytes[Kind::kMoments] = 4096;
  EXPECT_EQ(format(bytes),
            "  parameter shards           2.00 KiB\n"
            "  optimizer moments          4.00 KiB\n"
            "  total                      6.00 KiB\n");
  EXPECT_EQ(format(Bytes{}), "  total                           0 B\n");
}

}  // namespace
}  // namespace fsdp::memory
