// SPDX-License-Identifier: Apache-2.0
#include "net/listeners.hpp"

#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "fsdp/base/log.hpp"

namespace fsdp::net {

std::set<int> listening_sockets() {
  std::set<int> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    const auto option = [descriptor](int name) {
      int value = 0;
      socklen_t length = sizeof(value);
      return ::getsockopt(descriptor, SOL_SOCKET, name, &value, &length) == 0 ? value : 0;
    };
    const int domain = option(SO_DOMAIN);
    if ((domain == AF_INET || domain == AF_INET6) && option(SO_ACCEPTCONN) != 0) {
      found.insert(descriptor);
    }
  }
  return found;
}

void admit_nobody(int listening_socket) {
  // The kernel runs it over each packet for the socket: none has a byte that is wanted.
  constexpr std::uint16_t kReturn = BPF_RET | BPF_K;
  std::array<sock_filter, 1> nothing{{{.code = kReturn, .jt = 0, .jf = 0, .k = 0}}};
  const sock_fprog program{.len = nothing.size(), .filter = nothing.data()};
  if (::setsockopt(listening_socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) !=
      0) {
    base::log(base::LogLevel::kDebug, "the system does not close a listening socket to others");
  }
}

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace fsdp::net
