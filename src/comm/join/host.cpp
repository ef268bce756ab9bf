// SPDX-License-Identifier: Apache-2.0
#include "comm/join/host.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

namespace fsdp::comm::detail {

std::string host_identity() {
  if (const char* given = std::getenv("FSDP_HOST_ID"); given != nullptr && *given != '\0') {
    return given;
  }
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 128> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::array<char, 64> processes{};
  (void)!::readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1);
  return boot + " " + name.data() + " " + processes.data();
}

int first_elsewhere(const std::vector<std::string>& hosts) {
  for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
    if (hosts[rank] != hosts[0]) {
      return static_cast<int>(rank);
    }
  }
  return -1;
}

}  // namespace fsdp::comm::detail
