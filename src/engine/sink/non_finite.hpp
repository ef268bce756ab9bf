// SPDX-License-Identifier: Apache-2.0
/// Elements that are infinite or no number, found by their bits: one pass over memory at its speed,
/// and no allocation, so that every backward can afford it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::engine {

/// Position of the first such element of a contiguous tensor on the CPU; -1 for none, and for other
/// devices and types that have no such elements.
std::int64_t first_non_finite(const at::Tensor& tensor);

}  // namespace fsdp::engine
