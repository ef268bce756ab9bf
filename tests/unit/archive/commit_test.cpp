// SPDX-License-Identifier: Apache-2.0
#include "archive/commit.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CommitTest : public ::testing::Test {
 protected:
  std::string root() const { return directory_.path("run"); }
  std::string path(std::int64_t step) const { return root() + "/" + step_name(step); }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    for (const FoundCheckpoint& found : list_checkpoints(root())) {
      EXPECT_TRUE(found.is_complete()) << found.path << ": " << found.problem;
      steps.push_back(found.step);
    }
    return steps;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(CommitTest, AnyNumberOfRanksMakesTheSameBytes) {
  test::save_small(root(), 3, 1);
  const Checkpoint alone(path(3));
  const std::string expected = to_json(alone.index());
  for (int ranks : {2, 3, 8, 50}) {
    test::save_small(root(), 3, ranks);
    EXPECT_EQ(to_json(Checkpoint(path(3)).index()), expected) << ranks << " ranks";
    EXPECT_EQ(test::wrong_in_small(path(3), 3), "") << ranks << " ranks";
  }
}

TEST_F(CommitTest, DocumentsAreFilesOfTheCheckpoint) {
  test::save_small(root(), 3, 2, {.documents = {{"config.json", "{}"}}});
  const Checkpoint checkpoint(path(3));
  EXPECT_TRUE(fs::exists(path(3) + "/config.json"));
  EXPECT_EQ(checkpoint.index().files.back().name, "config.json");
  EXPECT_EQ(checkpoint.index().files.back().bytes, 2);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path(3))) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(names.size(), 4u) << "no receipt is left";
}

TEST_F(CommitTest, KeepsTheLastOnes) {
  for (std::int64_t step : {1, 2, 3, 4}) {
    test::save_small(root(), step, 1, {.keep = 2});
  }
  EXPECT_THAT(steps(), ElementsAre(3, 4));
  // A run that went back: what it saves stays, although higher steps are there.
  test::save_small(root(), 2, 1, {.keep = 1});
  EXPECT_THAT(steps(), ElementsAre(2));
}

TEST_F(CommitTest, WhatIsIncompleteCountsForNothingWhenKeeping) {
  test::save_small(root(), 1);
  fs::create_directories(path(2));
  fs::create_directories(path(3));
  test::save_small(root(), 4, 1, {.keep = 2});
  EXPECT_EQ(test::wrong_in_small(path(1), 1), "") << "the second complete one";
}

TEST_F(CommitTest, Fault102_ACheckpointOfTheSameStepIsExchangedAndNeverWrittenInto) {
  test::save_small(root(), 3, 1, {.documents = {{"config.json", "old"}}});
  const Checkpoint open(path(3));  // its files stay readable as they were
  test::save_small(root(), 3, 2, {.documents = {{"config.json", "new!"}}});
  EXPECT_EQ(Checkpoint(path(3)).index().files.back().bytes, 4);
  std::string old(3, ' ');
  open.read_head(open.index().files.back(), 0, 3, old.data());
  EXPECT_EQ(old, "old");
  EXPECT_THAT(steps(), ElementsAre(3));
}

TEST_F(CommitTest, Fault102_AKillBeforeTheCommitLeavesTheOldOne) {
  test::save_small(root(), 3);
  const test::SmallPlan plan = test::small_plan();
  const Draft draft{.root = root(), .step = 3, .key = 9};
  create_draft(draft, plan.files);
  test::write_small_rank(draft, plan, 0, 1);  // and here it ends
  EXPECT_EQ(test::wrong_in_small(latest_checkpoint(root()).found.value().path, 3), "");
}

TEST_F(CommitTest, ARankThatWroteTooLittleOrTwiceCannotCommit) {
  const test::SmallPlan plan = test::small_plan();
  const Draft draft{.root = root(), .step = 3, .key = 9};
  create_draft(draft, plan.files);
  test::write_small_rank(draft, plan, 0, 2);
  const auto half = read_receipts(draft, 1).value();
  EXPECT_THAT(test::error_of([&] { commit_draft(draft, plan.index, half); }),
              HasSubstr("bytes were written"));
  auto twice = half;
  twice.insert(twice.end(), half.begin(), half.end());
  EXPECT_THAT(test::error_of([&] { commit_draft(draft, plan.index, twice); }),
              HasSubstr("was written twice"));
  EXPECT_FALSE(latest_checkpoint(root()).found.has_value());
}

TEST_F(CommitTest, Fault104_TwoRunsCannotSaveToOneDirectory) {
  const RootLock lock(root());
  EXPECT_THAT(test::error_of([&] { RootLock(root(), 0.1); }), HasSubstr("another run saves to"));
}

TEST_F(CommitTest, ALockEndsWithItsHolder) {
  {
    const RootLock lock(root());
  }
  EXPECT_NO_THROW(RootLock(root(), 0.1));
}

}  // namespace
}  // namespace fsdp::archive
