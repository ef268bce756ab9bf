// SPDX-License-Identifier: Apache-2.0
#include "base/near_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace fsdp::base;
using testing::ElementsAre;

TEST(NearNames, DistanceCountsInsertionsRemovalsAndReplacements) {
  EXPECT_EQ(distance("", ""), 0u);
  EXPECT_EQ(distance("", "abc"), 3u);
  EXPECT_EQ(distance("abc", ""), 3u);
  EXPECT_EQ(distance("kitten", "sitting"), 3u);
  EXPECT_EQ(distance("h.0", "h.1"), 1u);
}

TEST(NearNames, Fault147_TheNearestComeFirst) {
  EXPECT_THAT(near_names("blocks.0", {"head", "block.0", "block.1"}, 2),
              ElementsAre("block.0", "block.1"));
  EXPECT_EQ(near_names_text("hed", {"embedding", "head"}, 1), "\"head\"");
  EXPECT_EQ(near_names_text("x", {}), "");
}

}  // namespace
