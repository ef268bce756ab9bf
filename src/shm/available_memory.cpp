// SPDX-License-Identifier: Apache-2.0
#include "shm/available_memory.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace fsdp::shm {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

/// The number behind `name` in a file of lines "name number".
std::optional<std::uint64_t> find_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t number = 0;
    if (words >> word >> number && word == name) {
      return number;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" is no number
}

/// Of version 2: the line "0::/path".
std::string own_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) {
      return line.substr(3);
    }
  }
  return "/";
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  const auto kibibytes = find_number(root + "/proc/meminfo", "MemAvailable:");
  AvailableMemory least{kibibytes ? *kibibytes * 1024 : kUnlimited, "the host"};
  const std::string groups = root + "/sys/fs/cgroup";
  for (std::filesystem::path group = own_group(root);; group = group.parent_path()) {
    const std::string directory = groups + group.string();
    const auto limit = read_number(directory + "/memory.max");
    const auto used = read_number(directory + "/memory.current");
    if (limit && used) {
      // Pages of files that are not in use count as used, but go first.
      const std::uint64_t files =
          find_number(directory + "/memory.stat", "inactive_file").value_or(0);
      const std::uint64_t held = *used - std::min(files, *used);
      const std::uint64_t left = *limit - std::min(held, *limit);
      if (left < least.bytes) {
        least = {left, "the container (" + directory + "/memory.max)"};
      }
    }
    if (!group.has_relative_path()) {
      return least;
    }
  }
}

AvailableMemory available_memory() { return available_memory(""); }

}  // namespace fsdp::shm
