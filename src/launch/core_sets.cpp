// SPDX-License-Identifier: Apache-2.0
#include "launch/core_sets.hpp"

#include <cstddef>

namespace fsdp::launch::detail {

std::vector<cpu_set_t> divide_cores(int ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return {};
  }
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) {
      cores.push_back(core);
    }
  }
  const auto parts = static_cast<std::size_t>(ranks);
  if (parts > cores.size()) {
    return {};
  }
  std::vector<cpu_set_t> sets(parts);
  for (std::size_t rank = 0; rank < parts; ++rank) {
    CPU_ZERO(&sets[rank]);
    for (std::size_t i = rank * cores.size() / parts; i < (rank + 1) * cores.size() / parts; ++i) {
      CPU_SET(cores[i], &sets[rank]);
    }
  }
  return sets;
}

}  // namespace fsdp::launch::detail
