// SPDX-License-Identifier: Apache-2.0
#include "optim/own_shards.hpp"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/narrow.h>

#include "engine/touch/touch.hpp"

namespace fsdp::optim {

OwnShards::OwnShards() : no_touch_(engine::kTouchKey) {}

void announce_write(const at::Tensor& shard) {
  const c10::NoGradGuard no_grad;
  shard.narrow(0, 0, 0).zero_();
}

bool follows(const at::Tensor& first, std::int64_t numel, const at::Tensor& next) {
  return next.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
         next.storage_offset() == first.storage_offset() + numel && next.is_contiguous() &&
         next.scalar_type() == first.scalar_type();
}

at::Tensor stretched(const at::Tensor& first, std::int64_t numel) {
  return first.numel() == numel ? first : first.as_strided({numel}, {1}, first.storage_offset());
}

}  // namespace fsdp::optim
