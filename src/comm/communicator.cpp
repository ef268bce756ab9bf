// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/communicator.hpp"

#include <ATen/ops/empty.h>

#include <utility>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

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

std::optional<std::string> Communicator::refuses(c10::Device device) const {
  return detail::refuse_all_but_cpu(transport(), device);
}

void Communicator::all_reduce(at::Tensor buffer, const Label& label) {
  start_all_reduce(std::move(buffer), 1.0, label)->wait();
}

at::Tensor Communicator::buffer(std::int64_t bytes) {
  const detail::DispatchGuard guard;
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

at::Tensor Communicator::shared_memory(std::int64_t, const Label&) { return {}; }

std::shared_ptr<Communicator> Communicator::split(const std::vector<int>&,
                                                  const std::string& label) {
  fail(ErrorCode::kUnsupported, "split \"", label, "\": transport ", transport(),
       " has no groups of ranks. Use transport gloo or shm (InitOptions::transport), or make one "
       "backend for each group and a World over each");
}

}  // namespace fsdp::comm
