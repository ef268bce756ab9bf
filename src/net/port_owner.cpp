// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "net/network.hpp"

namespace fsdp::net {
namespace {

namespace fs = std::filesystem;

/// A listening socket in the kernel's table.
struct Listener {
  std::string inode;
  std::string user;
};

/// Lines read "sl local:PORT remote:PORT state queues timer retransmits uid timeout inode ...".
std::optional<Listener> find_listener(const char* table, std::uint16_t port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    const auto colon = local.rfind(':');
    constexpr const char* kListening = "0A";
    if (fields && state == kListening && colon != std::string::npos &&
        std::stoul(local.substr(colon + 1), nullptr, 16) == port) {
      return Listener{inode, user};
    }
  }
  return std::nullopt;
}

bool holds(const fs::path& process, const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (fs::read_symlink(entry->path(), ignored) == socket) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string owner_of_port(std::uint16_t port) {
  std::optional<Listener> listener = find_listener("/proc/net/tcp", port);
  if (!listener) {
    listener = find_listener("/proc/net/tcp6", port);
  }
  if (!listener) {
    return "";
  }
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string pid = entry->path().filename();
    if (std::isdigit(static_cast<unsigned char>(pid.front())) &&
        holds(entry->path(), "socket:[" + listener->inode + "]")) {
      std::string name;
      std::ifstream file(entry->path() / "comm");
      std::getline(file, name);
      return "process " + pid + " (" + name + ")";
    }
  }
  return "a process of user " + listener->user;
}

}  // namespace fsdp::net
