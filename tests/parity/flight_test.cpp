// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/flight.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "support/temporary_directory.hpp"

namespace fsdp::checkpoint::detail {
namespace {

using std::chrono::milliseconds;

/// The disk is slow: rank 0 is at it for longer than it will wait for rank 1, which then needs a
/// moment more.
TEST(Flight, ASlowDiskDoesNotUseUpThePatienceForTheOtherRanks) {
  constexpr milliseconds kPatience{1500};
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {{.name = "weights", .head = "", .bytes = 8}});
  const std::array<float, 2> weight{1, 2};
  Flight flight({.draft = draft,
                 .rank = 0,
                 .ranks = 2,
                 .pieces = {{.range = {.tensor = 0, .bytes = 8}, .data = weight.data()}},
                 .index = {.tensors = {{.name = "weight",
                                        .dtype = "F32",
                                        .shape = {2},
                                        .file = "weights",
                                        .bytes = 8}}},
                 .commit = {}});
  std::thread slow([&] {
    std::this_thread::sleep_for(kPatience + milliseconds(300));
    flight.set_copied(1);
    std::this_thread::sleep_for(milliseconds(200));
    archive::write_receipt(draft, 1, {});
  });
  EXPECT_EQ(flight.end_alone(kPatience), "");
  slow.join();
  EXPECT_TRUE(std::filesystem::exists(draft.final_path()));
}

/// Rank 1 of 3 cannot write: its part belongs to a file that is not there.
TEST(Flight, Fault154_AWriterThatFailsIsToldToAllRanksAtOnce) {
  constexpr milliseconds kLongerThanTheTest = std::chrono::hours(1);
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {{.name = "weights", .head = "", .bytes = 8}});
  const std::array<float, 2> weight{1, 2};
  const auto plan_of = [&](int rank) {
    return FlightPlan{.draft = draft,
                      .rank = rank,
                      .ranks = 3,
                      .pieces = {{.range = {.tensor = 0, .bytes = 8}, .data = weight.data()}},
                      .index = {.tensors = {{.name = "weight",
                                             .dtype = "F32",
                                             .shape = {2},
                                             .file = rank == 1 ? "nowhere" : "weights",
                                             .bytes = 8}}},
                      .commit = {}};
  };
  std::array<std::string, 3> words;
  const auto run = [&](int rank) {
    Flight flight(plan_of(rank));
    flight.set_copied(1);
    words[static_cast<std::size_t>(rank)] = flight.end_alone(kLongerThanTheTest);
  };
  std::thread first(run, 0);
  run(1);
  run(2);
  first.join();
  for (const std::string& word : words) {
    EXPECT_NE(word.find("rank 1: [not found]"), std::string::npos) << word;
    EXPECT_NE(word.find("nowhere"), std::string::npos) << word;
  }
  EXPECT_FALSE(std::filesystem::exists(draft.path()));
  EXPECT_FALSE(std::filesystem::exists(draft.final_path()));
  // The next save leaves nothing of it.
  archive::create_draft({.root = draft.root, .step = 2, .key = 2}, {});
  EXPECT_EQ(archive::read_failure(draft), "");
}

/// A process that has begun to write as `rank`, and goes no further.
class Writer {
 public:
  Writer(const archive::Draft& draft, int rank) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that the watchdog ends leaves nobody
      const archive::WriterSign sign(draft, rank);
      ::pause();
      ::_exit(0);
    }
    const std::string sign = draft.path() + "/.writer-" + std::to_string(rank);
    std::error_code none;
    while (std::filesystem::file_size(sign, none) == 0 || none) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  ~Writer() { kill(); }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }

 private:
  pid_t pid_;
};

TEST(Flight, Fault154_ARankThatIsKilledIsNotWaitedFor) {
  constexpr milliseconds kLongerThanTheTest = std::chrono::hours(1);
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {});
  Writer writer(draft, 1);
  {
    // It lives, so it may still write.
    Flight flight({.draft = draft, .rank = 0, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
    const std::string text = flight.end_alone(milliseconds(200));
    EXPECT_NE(text.find("not all ranks have written, missing: 1"), std::string::npos) << text;
  }
  archive::create_draft(draft, {});
  Writer another(draft, 1);
  Flight flight({.draft = draft, .rank = 0, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    another.kill();
  });
  const std::string text = flight.end_alone(kLongerThanTheTest);
  later.join();
  EXPECT_NE(text.find("rank 1 ended before it had written its part"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(draft.path()));
}

TEST(Flight, Fault154_TheOthersDoNotWaitForARankZeroThatIsKilled) {
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {});
  Writer first(draft, 0);
  Flight flight({.draft = draft, .rank = 1, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
  first.kill();
  const std::string text = flight.end_alone();
  EXPECT_NE(text.find("rank 0 ended before it had completed it"), std::string::npos) << text;
}

TEST(Flight, ARankThatHasWrittenMayEnd) {
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {});
  Writer writer(draft, 1);
  archive::write_receipt(draft, 1, {});
  writer.kill();
  Flight flight({.draft = draft, .rank = 0, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
  EXPECT_EQ(flight.end_alone(milliseconds(2000)), "");
  for (const auto& entry : std::filesystem::directory_iterator(draft.final_path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
}

TEST(Flight, ARankThatIsGoneIsWaitedForOnlySoLong) {
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {});
  Flight flight({.draft = draft, .rank = 0, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
  EXPECT_NE(flight.end_alone(milliseconds(50)).find("not all ranks have written, missing: 1"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(draft.path()));
}

/// All ranks have written, and then the directory is moved before rank 0 sees their receipts.
TEST(Flight, Fault158_ADirectoryThatIsGoneIsNotWaitedFor) {
  const test::TemporaryDirectory directory;
  const archive::Draft draft{.root = directory.path("run"), .step = 1, .key = 1};
  archive::create_draft(draft, {});
  Flight flight({.draft = draft, .rank = 0, .ranks = 2, .pieces = {}, .index = {}, .commit = {}});
  flight.wait_written();
  std::filesystem::rename(draft.root, directory.path("elsewhere"));
  const std::string text = flight.end_alone(std::chrono::seconds(30));
  EXPECT_NE(text.find("run' moved or removed while it was saved to?"), std::string::npos) << text;
}

}  // namespace
}  // namespace fsdp::checkpoint::detail
