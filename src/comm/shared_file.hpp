// SPDX-License-Identifier: Apache-2.0
/// Memory shared by processes of one host: an anonymous file that rank 0 makes and the others open
/// through /proc. It has no name, so nothing stays behind when a job is killed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail {

/// `bytes` zero bytes that all ranks see, or an undefined tensor on all ranks when they are not on
/// one host or one of them cannot map the memory. @collective all ranks, same bytes
at::Tensor map_shared_file(Job& job, std::int64_t bytes, const Label& label);

}  // namespace fsdp::comm::detail
