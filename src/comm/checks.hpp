// SPDX-License-Identifier: Apache-2.0
/// What every transport demands of the tensors of a collective, and how it describes them. A call
/// that fails here has posted nothing: the ranks stay in step.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/fingerprint.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::comm::detail {

/// @throws Error kInvalidArgument naming the operation, the label and the offending sizes
Description check_all_gather(const at::Tensor& dst, const at::Tensor& src, int size,
                             const Label& label);
Description check_reduce_scatter(const at::Tensor& dst, const at::Tensor& src, int size,
                                 const Reduction& reduction, const Label& label);
Description check_broadcast(const at::Tensor& buffer, int root, int size, const Label& label);
Description describe_agree(const Label& label);

}  // namespace fsdp::comm::detail
