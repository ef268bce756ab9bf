// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// dst = (dst if accumulate) + sum / divisor by operators on the current stream, in at least
/// float32. `sum` is of dst's type, or one is of float32 and the other of bfloat16 or float16; it
/// is used up, and may be dst itself unless `accumulate`.
void finish_on_device(at::Tensor dst, at::Tensor sum, const Finish& finish);

}  // namespace fsdp::comm::detail
