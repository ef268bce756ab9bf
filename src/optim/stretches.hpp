// SPDX-License-Identifier: Apache-2.0
/// Neighbours in memory taken as one tensor, so that a pass over shards is few long loops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::optim {

/// Whether `next` begins in memory right where `numel` elements from the start of `first` end.
bool follows(const at::Tensor& first, std::int64_t numel, const at::Tensor& next);
/// `numel` elements of memory from the start of `first` on.
at::Tensor stretched(const at::Tensor& first, std::int64_t numel);

}  // namespace fsdp::optim
