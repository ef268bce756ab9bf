// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_finish.hpp"

#include <c10/core/ScalarType.h>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

void finish_on_device(at::Tensor dst, at::Tensor sum, const Finish& finish) {
  if (dst.numel() == 0) {
    return;
  }
  FSDP_ASSERT(!finish.accumulate || !sum.is_same(dst), "a sum in place of what it is added to");
  if (c10::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
    if (finish.divisor != 1.0) {
      sum.div_(static_cast<std::int64_t>(finish.divisor), "trunc");
    }
    finish.accumulate ? dst.add_(sum) : sum.is_same(dst) ? dst : dst.copy_(sum);
    return;
  }
  const bool is_narrow = sum.scalar_type() == at::kBFloat16 || sum.scalar_type() == at::kHalf;
  const bool widens = is_narrow && dst.scalar_type() == at::kFloat;
  if (widens && !finish.accumulate) {
    sum = dst.copy_(sum);
  } else if (is_narrow && finish.accumulate) {
    sum = sum.to(at::kFloat);
  }
  if (finish.divisor != 1.0) {
    sum.div_(finish.divisor);
  }
  if (!finish.accumulate) {
    if (!sum.is_same(dst)) {
      dst.copy_(sum);
    }
  } else if (dst.scalar_type() == sum.scalar_type()) {
    dst.add_(sum);
  } else {
    dst.copy_(sum.add_(dst));
  }
}

}  // namespace fsdp::comm::detail
