// SPDX-License-Identifier: Apache-2.0
/// The summation kernel of the transports that sum themselves: in rank order, in one pass.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// Whether a dtype can be reduced at all and the divisor makes sense for it.
/// @throws Error kUnsupported for a dtype other than float32, float64, bfloat16, float16, int32 and
/// int64; kInvalidArgument for a divisor of zero or a broken divisor of integers
void check_reduction(at::ScalarType dtype, const Finish& finish);

/// dst = (dst if accumulate) + (slices[0] + slices[1] + ...) / divisor, `numel` elements each.
///
/// The sum runs in the order of `slices`, of dtype `src_dtype`; float64 in float64, float32 in
/// float32, bfloat16 and float16 in float32, integers exactly. `dst_dtype` is the same, with one
/// rounding at the end, or float32 for bfloat16 and float16, with none, or these for float32 (sums
/// of sums). The divisor is applied by a division, so that the bits are those of sum / divisor.
/// `dst` may be one of the slices.
void reduce_slices(void* dst, at::ScalarType dst_dtype, std::span<const void* const> slices,
                   std::int64_t numel, at::ScalarType src_dtype, const Finish& finish);

}  // namespace fsdp::comm::detail
