// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "net/network.hpp"

namespace fsdp::net {
namespace {

namespace fs = std::filesystem;

/// A socket in the kernel's table.
struct Entry {
  std::uint16_t local = 0, remote = 0;  ///< ports
  std::string state, user, inode;
};

/// Lines read "sl local:PORT remote:PORT state queues timer retransmits uid timeout inode ...".
std::vector<Entry> read_table(const char* table) {
  std::vector<Entry> entries;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, queues, timer, retransmits, timeout;
    Entry entry;
    fields >> number >> local >> remote >> entry.state >> queues >> timer >> retransmits >>
        entry.user >> timeout >> entry.inode;
    const auto port = [](const std::string& endpoint) {
      return static_cast<std::uint16_t>(
          std::strtoul(endpoint.c_str() + endpoint.rfind(':') + 1, nullptr, 16));
    };
    if (fields && local.find(':') != std::string::npos && remote.find(':') != std::string::npos) {
      entry.local = port(local);
      entry.remote = port(remote);
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

constexpr std::array kTables{"/proc/net/tcp", "/proc/net/tcp6"};

std::optional<Entry> find_listener(std::uint16_t port) {
  constexpr const char* kListening = "0A";
  for (const char* table : kTables) {
    for (Entry& entry : read_table(table)) {
      if (entry.state == kListening && entry.local == port) {
        return std::move(entry);
      }
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
  const std::optional<Entry> listener = find_listener(port);
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

std::string other_users_at(const std::set<std::uint16_t>& ports) {
  constexpr const char* kConnected = "01";
  constexpr const char* kLeftByUs = "08";
  const std::string own = std::to_string(::geteuid());
  std::set<std::string> users;
  for (const char* table : kTables) {
    for (const Entry& entry : read_table(table)) {
      if ((entry.state == kConnected || entry.state == kLeftByUs) && ports.contains(entry.remote) &&
          entry.user != own) {
        users.insert("user " + entry.user);
      }
    }
  }
  return base::list_text(users);
}

}  // namespace fsdp::net
