// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/self_check.hpp"

#include <ATen/ops/empty.h>

#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

void check_sums(Transport& group, const std::string& what) {
  const DispatchGuard guard;
  const Label label{.name = "self-check"};
  const int size = group.size();
  // Slice s of rank r is r + 1 + s everywhere: two ranks reduce 1 and 2 to a mean of 1.5.
  constexpr std::int64_t kNumel = 3;
  const at::Tensor src = at::empty({size * kNumel}, at::kFloat);
  auto* values = src.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < src.numel(); ++i) {
    values[i] = static_cast<float>(group.rank() + 1 + i / kNumel);
  }
  const at::Tensor mean = at::empty({kNumel}, at::kFloat);
  group.reduce_scatter(mean, src, {.divisor = static_cast<double>(size)}, label)->wait();
  const at::Tensor all = at::empty({size * kNumel}, at::kFloat);
  group.all_gather(all, mean, label)->wait();
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const float expected = static_cast<float>(size + 1) / 2.0F + static_cast<float>(i / kNumel);
    const float found = all.const_data_ptr<float>()[i];
    FSDP_CHECK(found == expected, ErrorCode::kUnsupported, what,
               " does not sum what it reduces: ", "the mean of ", size, " ranks' known numbers is ",
               found, " on rank ", i / kNumel, ", must be ", expected,
               ". Does it know SUM for float32, and does it leave a sum undivided?");
  }
}

}  // namespace fsdp::comm::detail
