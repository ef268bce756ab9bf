// SPDX-License-Identifier: Apache-2.0
/// Two processes save one step after the other, as two ranks do, and are killed at a random moment,
/// a hundred times in the same directory. After each kill every visible checkpoint is whole, and
/// the newest is not older than before.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "fsdp/archive/listing.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

constexpr int kKills = 100;
constexpr int kRanks = 2;
constexpr auto kPoll = std::chrono::microseconds(100);

std::uint32_t seed() {
  const char* text = std::getenv("FSDP_PROPERTY_SEED");
  return text != nullptr ? static_cast<std::uint32_t>(std::atol(text)) : 20240701u;
}

/// The step of which rank 0 has made the draft: what ranks of a job agree on by a collective.
using Created = std::atomic<std::int64_t>;

Draft draft_of(const std::string& root, std::int64_t step) {
  return {.root = root, .step = step, .key = static_cast<std::uint64_t>(step) * 7};
}

[[noreturn]] void first_rank(const std::string& root, std::int64_t step, Created& created) {
  const test::SmallPlan plan = test::small_plan();
  for (;; ++step) {
    const Draft draft = draft_of(root, step);
    create_draft(draft, plan.files);
    created.store(step);
    test::write_small_rank(draft, plan, 0, kRanks);
    auto sums = read_receipts(draft, kRanks);
    for (; !sums; sums = read_receipts(draft, kRanks)) {
      std::this_thread::sleep_for(kPoll);
    }
    commit_draft(draft, plan.index, *sums, {.documents = {{"config.json", "{}"}}, .keep = 2});
  }
}

[[noreturn]] void second_rank(const std::string& root, std::int64_t step, Created& created) {
  const test::SmallPlan plan = test::small_plan();
  for (;; ++step) {
    while (created.load() < step) {
      std::this_thread::sleep_for(kPoll);
    }
    test::write_small_rank(draft_of(root, step), plan, 1, kRanks);
  }
}

pid_t start(int rank, const std::string& root, std::int64_t step, Created& created) {
  const pid_t child = ::fork();
  if (child == 0) {
    rank == 0 ? first_rank(root, step, created) : second_rank(root, step, created);
  }
  return child;
}

void end(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself";
}

/// Checks all that is there and returns the newest step; 0 without any.
std::int64_t newest_whole(const std::string& root) {
  std::int64_t newest = 0;
  for (const FoundCheckpoint& found : list_checkpoints(root)) {
    const bool is_draft = found.path.find("/.step-") != std::string::npos;
    EXPECT_TRUE(found.is_complete() || is_draft) << found.path << ": " << found.problem;
    if (found.is_complete()) {
      EXPECT_EQ(test::wrong_in_small(found.path, found.step), "") << found.path;
      newest = std::max(newest, found.step);
    }
  }
  return newest;
}

TEST(ArchiveKillTest, Fault101_AKillAtAnyMomentLeavesACompleteCheckpoint) {
  const test::TemporaryDirectory directory;
  const std::string root = directory.path();
  test::save_small(root, 1);
  void* shared =
      ::mmap(nullptr, sizeof(Created), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& created = *new (shared) Created(0);
  std::mt19937 random(seed());
  std::printf("seed %u\n", seed());
  std::int64_t newest = 1;
  int interrupted = 0;
  for (int round = 0; round < kKills; ++round) {
    created.store(0);
    const pid_t ranks[kRanks] = {start(0, root, newest + 1, created),
                                 start(1, root, newest + 1, created)};
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    const std::size_t first = random() % 2;
    end(ranks[first]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    end(ranks[1 - first]);
    const std::int64_t now = newest_whole(root);
    ASSERT_GE(now, newest) << "round " << round;
    newest = now;
    const auto all = list_checkpoints(root);
    interrupted += std::any_of(all.begin(), all.end(),
                               [](const FoundCheckpoint& found) { return !found.is_complete(); });
  }
  std::printf("%d kills: %lld steps saved, %d saves cut\n", kKills,
              static_cast<long long>(newest - 1), interrupted);
  EXPECT_GT(interrupted, 0) << "no kill met a save";
  ::munmap(shared, sizeof(Created));
}

/// Runs `save` in a process that ends at its `stops`-th stop before or after a system call. Returns
/// whether it was killed, false when it had ended before.
template <class Save>
bool killed_at(int stops, Save&& save) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    save();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (int stop = 0; stop < stops && WIFSTOPPED(status); ++stop) {
    const int signal = WSTOPSIG(status);
    const bool is_ours = signal == SIGTRAP || signal == SIGSTOP;
    ::ptrace(PTRACE_SYSCALL, child, nullptr, is_ours ? 0 : signal);
    ::waitpid(child, &status, 0);
  }
  if (!WIFSTOPPED(status)) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return true;
}

bool may_trace() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// A stop before and one after each system call; every one would take a minute, an odd stride meets
/// both kinds.
constexpr int kStride = 5;

/// Saves `step` beside a checkpoint of step 1 again and again, each time killed a stride later,
/// until a save ends by itself.
void kill_all_over_a_save(std::int64_t step) {
  if (!may_trace()) {
    GTEST_SKIP() << "this system lets no process trace another";
  }
  const archive::CommitOptions options{.documents = {{"config.json", "{}"}}, .keep = 1};
  int stops = 1;
  for (bool is_killed = true; is_killed; stops += kStride) {
    const test::TemporaryDirectory directory;
    test::save_small(directory.path(), 1);
    is_killed = killed_at(stops, [&] { test::save_small(directory.path(), step, 2, options); });
    ASSERT_GE(newest_whole(directory.path()), is_killed ? 1 : step) << "killed at stop " << stops;
  }
  std::printf("killed at %d of %d stops\n", stops / kStride, stops);
  EXPECT_GT(stops, 200);
}

TEST(ArchiveKillTest, Fault101_AKillAtAnySystemCallLeavesACompleteCheckpoint) {
  kill_all_over_a_save(2);
}

TEST(ArchiveKillTest, Fault102_AKillWhileTheSameStepIsSavedAgainLeavesOneOfBoth) {
  kill_all_over_a_save(1);
}

}  // namespace
}  // namespace fsdp::archive
