// SPDX-License-Identifier: Apache-2.0
/// What the host asks of a device: the one place where the library waits for one. Everything else
/// that reaches a device is ordered on streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::comm {

/// The same values on the host, contiguous; `tensor` itself where it is both.
/// @blocks until the device has them, else not
at::Tensor on_host(const at::Tensor& tensor);

/// The values of tensors of one element each, of any type. @blocks once per device, all together
std::vector<double> numbers_on_host(const std::vector<at::Tensor>& numbers);

/// Until the device has done what the current stream was given; not for the CPU. @blocks
void wait_for_current_stream(c10::Device device);

}  // namespace fsdp::comm
