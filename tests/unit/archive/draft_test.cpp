// SPDX-License-Identifier: Apache-2.0
#include "archive/draft.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DraftTest : public ::testing::Test {
 protected:
  std::string root() const { return directory_.path("run"); }
  Draft draft(std::int64_t step) const { return {.root = root(), .step = step, .key = 5}; }

  test::TemporaryDirectory directory_;
  test::SmallPlan plan_ = test::small_plan();
};

TEST_F(DraftTest, IsHiddenUntilItIsCommitted) {
  create_draft(draft(7), plan_.files);
  test::write_small_rank(draft(7), plan_, 0, 1);
  EXPECT_FALSE(latest_checkpoint(root()).found.has_value());
  ASSERT_EQ(list_checkpoints(root()).size(), 1u);
  EXPECT_EQ(list_checkpoints(root())[0].problem, "its save did not end");
  EXPECT_EQ(list_checkpoints(root())[0].step, 7);
}

TEST_F(DraftTest, ReceiptsAreThereWhenAllRanksHaveWritten) {
  create_draft(draft(7), plan_.files);
  for (int rank : {2, 0, 1}) {
    EXPECT_FALSE(read_receipts(draft(7), 3).has_value());
    test::write_small_rank(draft(7), plan_, rank, 3);
  }
  EXPECT_TRUE(read_receipts(draft(7), 3).has_value());
}

TEST_F(DraftTest, ANewAttemptRemovesWhatEarlierOnesLeft) {
  create_draft(draft(7), plan_.files);
  create_draft({.root = root(), .step = 8, .key = 6}, plan_.files);
  EXPECT_FALSE(fs::exists(draft(7).path()));
  abandon_draft({.root = root(), .step = 8, .key = 6});
  EXPECT_TRUE(list_checkpoints(root()).empty());
}

TEST_F(DraftTest, Fault103_AFullDiskIsNamedWithBothNumbersBeforeAnythingIsWritten) {
  plan_.files[0].bytes = std::int64_t{1} << 60;
  const std::string text = test::error_of([&] { create_draft(draft(7), plan_.files); });
  EXPECT_THAT(text, HasSubstr("No space left on device"));
  EXPECT_THAT(text, HasSubstr("bytes needed"));
  EXPECT_THAT(text, HasSubstr(draft(7).path()));
}

// In a process of its own, since a limit once lowered cannot be raised by everyone.
TEST_F(DraftTest, Fault103_AWriteThatTheSystemCutsShortNamesPathAndReason) {
  test::save_small(root(), 6);
  create_draft(draft(7), plan_.files);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 64, .rlim_max = 64};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text = test::error_of([&] { test::write_small_rank(draft(7), plan_, 0, 1); });
    const bool is_named = text.find("File too large") != std::string::npos &&
                          text.find("model.safetensors") != std::string::npos &&
                          text.find("bytes needed") != std::string::npos;
    ::_exit(is_named ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(read_receipts(draft(7), 1).has_value());
  EXPECT_EQ(test::wrong_in_small(latest_checkpoint(root()).found.value().path, 6), "");
  test::save_small(root(), 7);
  EXPECT_EQ(latest_checkpoint(root()).found.value().step, 7) << "and the next save works";
}

TEST_F(DraftTest, AVanishedDirectoryIsNamed) {
  create_draft(draft(7), plan_.files);
  fs::remove_all(draft(7).path());
  const std::string text = test::error_of([&] { test::write_small_rank(draft(7), plan_, 0, 1); });
  EXPECT_THAT(text, HasSubstr(draft(7).path()));
  EXPECT_THAT(text, HasSubstr("No such file"));
}

TEST_F(DraftTest, APlaceThatCannotBeWrittenIsNamed) {
  const Draft nowhere{.root = "/proc/nowhere", .step = 1, .key = 1};
  const std::string text = test::error_of([&] { create_draft(nowhere, plan_.files); });
  EXPECT_THAT(text, HasSubstr("cannot create directory '/proc/nowhere'"));
  directory_.write("file", "");
  EXPECT_THAT(test::error_of([&] {
                create_draft({.root = directory_.path("file"), .step = 1, .key = 1}, plan_.files);
              }),
              HasSubstr("cannot create directory"));
}

}  // namespace
}  // namespace fsdp::archive
