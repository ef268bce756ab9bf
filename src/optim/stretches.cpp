// SPDX-License-Identifier: Apache-2.0
#include "optim/stretches.hpp"

#include <ATen/ops/as_strided.h>

namespace fsdp::optim {

bool follows(const at::Tensor& first, std::int64_t numel, const at::Tensor& next) {
  return next.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
         next.storage_offset() == first.storage_offset() + numel && next.is_contiguous() &&
         next.scalar_type() == first.scalar_type();
}

at::Tensor stretched(const at::Tensor& first, std::int64_t numel) {
  return first.numel() == numel ? first : first.as_strided({numel}, {1}, first.storage_offset());
}

}  // namespace fsdp::optim
