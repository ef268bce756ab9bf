// SPDX-License-Identifier: Apache-2.0
#include "launch/descendants.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace fsdp::launch::detail {
namespace {

/// The parent of a process, -1 when it is gone. The name in front may hold blanks, parentheses and
/// ends of lines.
pid_t parent_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const auto end_of_name = text.rfind(')');
  // ") S 123 ...": the state is one letter.
  return end_of_name == std::string::npos || text.size() < end_of_name + 5
             ? -1
             : static_cast<pid_t>(std::stol(text.substr(end_of_name + 4)));
}

}  // namespace

std::vector<pid_t> list_children() {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name.front())) && parent_of(name) == ::getpid()) {
      children.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return children;
}

std::vector<pid_t> end_descendants(const std::vector<pid_t>& spared,
                                   std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kPause{5};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    std::vector<pid_t> left;
    for (const pid_t child : list_children()) {
      if (std::find(spared.begin(), spared.end(), child) == spared.end()) {
        ::kill(child, SIGKILL);
        left.push_back(child);
      }
    }
    if (left.empty()) {
      return left;
    }
    bool any_reaped = false;
    for (const pid_t child : left) {
      any_reaped |= ::waitpid(child, nullptr, WNOHANG) == child;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return left;
    }
    if (!any_reaped) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace fsdp::launch::detail
