// SPDX-License-Identifier: Apache-2.0
/// fsdp::init under the launcher and alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "launch/launcher.hpp"

namespace fsdp {
namespace {

constexpr const char* kBodyVariable = "FSDP_TEST_LAUNCHED";

/// Runs this test again, `ranks` times, under the launcher, each by way of `wrapper`.
int launch_current_test(int ranks, std::vector<std::string> wrapper = {}) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::array<char, 4096> self{};
  EXPECT_GT(::readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  wrapper.insert(wrapper.end(), {self.data(), std::string("--gtest_filter=") +
                                                  test->test_suite_name() + "." + test->name()});
  return launch::run(
      {.ranks = ranks,
       .command = std::move(wrapper),
       .environment = {
           {kBodyVariable, "1"}, {"GTEST_TOTAL_SHARDS", "1"}, {"GTEST_SHARD_INDEX", "0"}}});
}

/// A sum over all ranks.
void expect_sum(const World& world) {
  at::Tensor sum = at::full({1}, static_cast<float>(world.rank()));
  world.transport().all_reduce(sum, {.name = "sum"});
  const auto size = static_cast<float>(world.size());
  EXPECT_EQ(sum.item<float>(), size * (size - 1) / 2);
}

TEST(LaunchedWorld, Fault150_AJobJoinsAsOftenAsItLikes) {
  if (std::getenv(kBodyVariable) == nullptr) {
    EXPECT_EQ(launch_current_test(3), 0);
    return;
  }
  const World first = init();
  expect_sum(first);
  const World second = init({.transport = "gloo"});  // beside the first one
  expect_sum(second);
  for (int again = 0; again < 5; ++again) {
    const World world = init();
    expect_sum(world);
    if (again == world.rank()) {
      ::usleep(20000);  // one is late with leaving, and with joining again
    }
  }
  expect_sum(first);
}

TEST(LaunchedWorld, Fault150_AWrapperMayCloseAllDescriptors) {
  if (std::getenv(kBodyVariable) == nullptr) {
    EXPECT_EQ(launch_current_test(2, {"/bin/sh", "-c",
                                      "for n in 3 4 5 6 7 8 9; do eval \"exec $n>&-\"; done; "
                                      "\"$0\" \"$@\""}),
              0);
    return;
  }
  expect_sum(init());
}

TEST(LaunchedWorld, MeetsUnderTheLauncher) {
  if (std::getenv(kBodyVariable) == nullptr) {
    EXPECT_EQ(launch_current_test(3), 0);
    return;
  }
  const World world = init();
  EXPECT_EQ(world.size(), 3);
  EXPECT_EQ(world.local_size(), 3);
  at::Tensor sum = at::full({1}, static_cast<float>(world.rank()));
  world.transport().all_reduce(sum, {.name = "sum"});
  EXPECT_EQ(sum.item<float>(), 3);
}

TEST(LaunchedWorld, AFailingRankGivesItsCodeToTheLauncher) {
  if (std::getenv(kBodyVariable) == nullptr) {
    EXPECT_EQ(launch_current_test(2), 7);
    return;
  }
  const World world = init();
  world.barrier();
  if (world.rank() == 1) {
    std::_Exit(7);
  }
  EXPECT_THROW(world.barrier(), Error);
}

TEST(LaunchedWorld, WithoutALauncherOneProcessIsTheWorld) {
  for (const char* name : {"RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID"}) {
    ::unsetenv(name);
  }
  const World world = init();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.transport().traits().name, "threads");
  at::Tensor whole = at::zeros({3});
  world.transport().all_gather(whole, at::ones({3}), {.unit = 0})->wait();
  EXPECT_TRUE(whole.eq(1).all().item<bool>());
}

TEST(LaunchedWorld, BadSettingsAreRefused) {
  EXPECT_THROW(init({.transport = "carrier pigeon"}), Error);
  ::setenv("FSDP_TIMEOUT", "soon", 1);
  try {
    init();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("FSDP_TIMEOUT is 'soon'"));
  }
  ::unsetenv("FSDP_TIMEOUT");
}

}  // namespace
}  // namespace fsdp
