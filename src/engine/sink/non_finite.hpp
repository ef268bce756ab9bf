// SPDX-License-Identifier: Apache-2.0
/// Elements that are infinite or no number, found by their bits while they are in the cache: a pass
/// of its own over all gradients would cost as much as copying them.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::engine {

/// Whether a tensor on the CPU has such an element. False for other devices, and for types that
/// have none. @cost a pass over its memory
bool has_non_finite(const at::Tensor& tensor);

/// dst.copy_(src), and has_non_finite(dst) at the same time. @cost a copy where both are contiguous
/// and of one type, else the pass too
bool copy_has_non_finite(const at::Tensor& dst, const at::Tensor& src);

}  // namespace fsdp::engine
