// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/listing.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "archive/draft.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ListingTest : public ::testing::Test {
 protected:
  ListingTest() {
    test::save_small(root(), 1);
    test::save_small(root(), 2);
  }
  std::string root() const { return directory_.path("run"); }
  std::string in_second(const std::string& name) const {
    return root() + "/" + step_name(2) + "/" + name;
  }
  /// What is said of step 2 when step 1 is the newest complete one.
  std::string problem_of_second() const {
    const LatestCheckpoint latest = latest_checkpoint(root());
    EXPECT_EQ(latest.found.value().step, 1);
    EXPECT_EQ(latest.skipped.size(), 1u);
    return latest.skipped.empty() ? "" : latest.skipped[0].problem;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(ListingTest, TheNewestIsTheLatest) {
  EXPECT_EQ(latest_checkpoint(root()).found.value().step, 2);
  EXPECT_TRUE(latest_checkpoint(root()).skipped.empty());
  EXPECT_EQ(resolve_checkpoint(root()), root() + "/step-00000002");
  EXPECT_EQ(resolve_checkpoint(root() + "/step-00000001"), root() + "/step-00000001");
  EXPECT_GT(list_checkpoints(root())[0].bytes, 200);
}

TEST_F(ListingTest, Fault101_OneWithoutIndexIsSkippedAndSaidSo) {
  fs::remove(in_second(kIndexName));
  EXPECT_THAT(problem_of_second(), HasSubstr("incomplete"));
}

TEST_F(ListingTest, Fault101_OneWithAMissingOrShortFileIsSkippedAndSaidSo) {
  fs::resize_file(in_second("model.safetensors"), 100);
  EXPECT_THAT(problem_of_second(), HasSubstr("has 100 bytes"));
  fs::remove(in_second("model.safetensors"));
  EXPECT_THAT(problem_of_second(), HasSubstr("is missing"));
}

TEST_F(ListingTest, Fault107_AnIndexOfAnotherStepDoesNotFit) {
  fs::copy_file(root() + "/step-00000001/" + kIndexName, in_second(kIndexName),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(problem_of_second(), HasSubstr("has the index of step 1"));
}

TEST_F(ListingTest, OtherEntriesAreLeftAlone) {
  fs::create_directories(root() + "/step-x");
  fs::create_directories(root() + "/step-");
  fs::create_directories(root() + "/notes");
  EXPECT_EQ(list_checkpoints(root()).size(), 2u);
}

TEST_F(ListingTest, Fault156_WhereNoneIsCompleteNothingIsFoundByNoMistake) {
  fs::remove(in_second(kIndexName));
  fs::remove(root() + "/step-00000001/model.safetensors");
  const auto is_named =
      AllOf(HasSubstr("none of 2 checkpoints"), HasSubstr("step-00000002' is incomplete"),
            HasSubstr("step-00000001' is incomplete"), HasSubstr("is missing"),
            HasSubstr("Move them away to begin anew"));
  EXPECT_THAT(test::error_of([&] { latest_checkpoint(root()); }), is_named);
  EXPECT_THAT(test::error_of([&] { resolve_checkpoint(root()); }), is_named);
  fs::remove_all(root() + "/step-00000001");
  fs::rename(root() + "/step-00000002", root() + "/.step-00000002.partial-1");
  EXPECT_FALSE(latest_checkpoint(root()).found) << "a first save that did not end";
  EXPECT_THAT(test::error_of([&] { resolve_checkpoint(root()); }),
              AllOf(HasSubstr("nor a complete checkpoint"), HasSubstr("its save did not end")));
}

TEST_F(ListingTest, Fault156_WhatCannotBeLookedAtIsNotEmpty) {
  fs::create_symlink(directory_.path("loop"), directory_.path("loop"));
  EXPECT_THAT(test::error_of([&] { latest_checkpoint(directory_.path("loop")); }),
              HasSubstr("Too many levels"));
  EXPECT_THAT(test::error_of([&] { resolve_checkpoint(directory_.path("no")); }),
              HasSubstr("there is no checkpoint"));
  EXPECT_FALSE(latest_checkpoint(directory_.path("no")).found.has_value());
}

}  // namespace
}  // namespace fsdp::archive
