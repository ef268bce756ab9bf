// SPDX-License-Identifier: Apache-2.0
#include "comm/fingerprint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {
namespace {

using testing::HasSubstr;
using testing::Not;

Description gather() {
  return {.operation = static_cast<std::int32_t>(Operation::kAllGather),
          .unit = 0,
          .name = "h.0",
          .bytes = 64,
          .dtype = "Float"};
}

/// One description for each field that tells collectives apart.
std::vector<Fingerprint> variants() {
  std::vector<Description> descriptions(7, gather());
  descriptions[1].operation = static_cast<std::int32_t>(Operation::kReduceScatter);
  descriptions[2].unit = 1;
  descriptions[3].name = "h.1";
  descriptions[4].bytes = 68;
  descriptions[5].dtype = "Int";
  descriptions[6].root = 1;
  std::vector<Fingerprint> fingerprints;
  for (const Description& description : descriptions) {
    fingerprints.push_back(make_fingerprint(description, 12, 0));
  }
  fingerprints.push_back(make_fingerprint(gather(), 13, 0));
  return fingerprints;
}

TEST(Fingerprint, EveryFieldTellsCollectivesApart) {
  const std::vector<Fingerprint> all = variants();
  std::set<std::uint64_t> hashes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    hashes.insert(hash(all[i]));
    for (std::size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(same_collective(all[i], all[j]), i == j) << i << " " << j;
    }
  }
  EXPECT_EQ(hashes.size(), all.size());
}

TEST(Fingerprint, TheRankIsNoDifference) {
  const Fingerprint left = make_fingerprint(gather(), 12, 0);
  const Fingerprint right = make_fingerprint(gather(), 12, 5);
  EXPECT_TRUE(same_collective(left, right));
  EXPECT_EQ(hash(left), hash(right));
}

TEST(Fingerprint, LongNamesThatDifferAtTheEndAreDifferent) {
  const std::string start(200, 'x');
  const std::string left_name = start + "a";
  const std::string right_name = start + "b";
  Description left = gather();
  Description right = gather();
  left.name = left_name;
  right.name = right_name;
  EXPECT_FALSE(same_collective(make_fingerprint(left, 1, 0), make_fingerprint(right, 1, 0)));
  EXPECT_THAT(describe(make_fingerprint(left, 1, 0)), HasSubstr(std::string(72, 'x') + "\""));
}

TEST(Fingerprint, TextsReadLikeASentence) {
  EXPECT_EQ(describe(make_fingerprint(gather(), 12, 0)), "all-gather #12 of unit \"h.0\"");
  Description call{.operation = static_cast<std::int32_t>(Operation::kAgree), .name = "save"};
  EXPECT_EQ(describe(make_fingerprint(call, 3, 0)), "agree #3 in \"save\"");
  Description nameless = gather();
  nameless.name = "";
  EXPECT_EQ(describe(make_fingerprint(nameless, 3, 0)), "all-gather #3 of unit 0");
}

TEST(Fingerprint, AMismatchReadsTheSameFromBothSides) {
  const Fingerprint left = make_fingerprint(gather(), 12, 0);
  Description other = gather();
  other.operation = static_cast<std::int32_t>(Operation::kReduceScatter);
  other.unit = 1;
  other.name = "h.1";
  const Fingerprint right = make_fingerprint(other, 12, 1);
  EXPECT_EQ(describe_mismatch(left, right), describe_mismatch(right, left));
  EXPECT_THAT(describe_mismatch(left, right),
              testing::StartsWith("all-gather #12 of unit \"h.0\" (64 bytes of Float a slice) on "
                                  "rank 0 met reduce-scatter #12 of unit \"h.1\""));
}

TEST(Fingerprint, TheLikelyCauseFollowsTheField) {
  const std::vector<Fingerprint> all = variants();
  EXPECT_THAT(describe_mismatch(all[0], all[4]), HasSubstr("different sizes"));
  EXPECT_THAT(describe_mismatch(all[0], all[5]), HasSubstr("different dtypes"));
  EXPECT_THAT(describe_mismatch(all[0], all[5]), Not(HasSubstr("different code")));
  EXPECT_THAT(describe_mismatch(all[0], all[2]), HasSubstr("full_parameters()"));
}

}  // namespace
}  // namespace fsdp::comm::detail
