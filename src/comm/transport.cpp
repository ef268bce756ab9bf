// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/transport.hpp"

#include <utility>

namespace fsdp::comm {

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kAllGather: return "all-gather";
    case Operation::kReduceScatter: return "reduce-scatter";
    case Operation::kBroadcast: return "broadcast";
    case Operation::kAgree: return "agree";
  }
  return "unknown collective";
}

int Link::rank() const { return job->rank(); }
int Link::size() const { return job->size(); }

Link Link::split(const std::vector<int>& ranks, const std::string& label) const {
  auto part = job->split(ranks, label);
  auto data = transport->split(part);
  return {.job = std::move(part), .transport = std::move(data)};
}

std::int64_t Transport::reserve_gathers(std::int64_t, int) { return 0; }

void Transport::all_reduce(at::Tensor buffer, const Label& label) {
  start_all_reduce(std::move(buffer), 1.0, label)->wait();
}

}  // namespace fsdp::comm
