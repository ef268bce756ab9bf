// SPDX-License-Identifier: Apache-2.0
/// Memory that somebody else owns, as a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::comm {

/// [numel] elements at `address`, which is memory of `device`. Of no elements, any address will do,
/// null among them, where at::from_blob() would ask the device whose it is.
at::Tensor tensor_at(void* address, std::int64_t numel, at::ScalarType dtype, c10::Device device);

}  // namespace fsdp::comm
