// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/communicator.hpp"

#include <ATen/ops/empty.h>

#include <vector>

#include "comm/dispatch_guard.hpp"
#include "comm/reduce_slices.hpp"
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

void Communicator::all_reduce(at::Tensor buffer, const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(buffer.defined() && buffer.is_contiguous(), ErrorCode::kInvalidArgument,
             "all-reduce for \"", label.name, "\": the buffer must be defined and contiguous");
  detail::check_reduction(buffer.scalar_type(), {});
  at::Tensor gathered = at::empty({size() * buffer.numel()}, buffer.options());
  all_gather(gathered, buffer, label)->wait();
  std::vector<const void*> slices(static_cast<std::size_t>(size()));
  const auto slice_bytes = buffer.nbytes();
  for (std::size_t r = 0; r < slices.size(); ++r) {
    slices[r] = static_cast<const std::byte*>(gathered.const_data_ptr()) + r * slice_bytes;
  }
  detail::reduce_slices(buffer.mutable_data_ptr(), slices, buffer.numel(), buffer.scalar_type(),
                        {});
}

at::Tensor Communicator::buffer(std::int64_t bytes) {
  const detail::DispatchGuard guard;
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

at::Tensor Communicator::shared_memory(std::int64_t, const Label&) { return {}; }

}  // namespace fsdp::comm
