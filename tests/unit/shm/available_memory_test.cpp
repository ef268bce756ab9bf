// SPDX-License-Identifier: Apache-2.0
#include "shm/available_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_directory.hpp"

namespace fsdp::shm {
namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(AvailableMemory, OfThisMachineIsPlausible) {
  const AvailableMemory memory = available_memory();
  EXPECT_GT(memory.bytes, std::uint64_t{1} << 20);
  EXPECT_LT(memory.bytes, std::uint64_t{1} << 50);
  EXPECT_FALSE(memory.limited_by.empty());
}

TEST(AvailableMemory, IsTheHostsWithoutLimits) {
  const test::TemporaryDirectory root;
  write(root.path() + "/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:  100 kB\n");
  const AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.bytes, 102400U);
  EXPECT_EQ(memory.limited_by, "the host");
}

TEST(AvailableMemory, IsTheLeastOfAllGroupsAbove) {
  const test::TemporaryDirectory root;
  const std::string groups = root.path() + "/sys/fs/cgroup";
  write(root.path() + "/proc/meminfo", "MemAvailable: 100 kB\n");
  write(root.path() + "/proc/self/cgroup", "1:name=x:/y\n0::/job/rank\n");
  write(groups + "/job/rank/memory.max", "max\n");
  write(groups + "/job/rank/memory.current", "5000\n");
  write(groups + "/job/memory.max", "50000\n");
  write(groups + "/job/memory.current", "20000\n");
  write(groups + "/job/memory.stat", "anon 1\ninactive_file 7000\n");
  const AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.bytes, 37000U);
  EXPECT_EQ(memory.limited_by, "the container (" + groups + "/job/memory.max)");
}

}  // namespace
}  // namespace fsdp::shm
