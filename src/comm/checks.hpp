// SPDX-License-Identifier: Apache-2.0
/// What every transport demands of the tensors of a collective, and how it describes them. A call
/// that fails here has posted nothing: the ranks stay in step.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/fingerprint.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// The answer of a transport that reads and writes memory of the host, for Transport::refuses().
std::optional<std::string> refuse_all_but_cpu(const std::string& transport, c10::Device device);

/// @throws Error kInvalidArgument naming the operation, the label and the offending sizes;
/// kUnsupported for a tensor of a device that `group` does not take
Description check_all_gather(const Transport& group, const at::Tensor& dst, const at::Tensor& src,
                             const Label& label);
Description check_reduce_scatter(const Transport& group, const at::Tensor& dst,
                                 const at::Tensor& src, const Finish& finish, const Label& label);
Description check_broadcast(const Transport& group, const at::Tensor& buffer, int root,
                            const Label& label);
Description describe_agree(const Label& label);
Description describe(const Announcement& announcement);

}  // namespace fsdp::comm::detail
