// SPDX-License-Identifier: Apache-2.0
/// In which type the elements of a collective travel, in one place. It is neither the type in which
/// a parameter is used nor the one in which gradients are added up, though it is often equal to one
/// of them: a wire of fewer bits begins here. Gathers and broadcasts move bytes as they are.
#pragma once

#include <c10/core/ScalarType.h>

namespace fsdp::comm::detail {

/// Whether a sum of `src` may land in another type `dst`: float32 for bfloat16 and float16.
constexpr bool is_widening(at::ScalarType dst, at::ScalarType src) {
  return dst == at::kFloat && (src == at::kBFloat16 || src == at::kHalf);
}

/// Who adds up what a reduce-scatter moves.
enum class Summing {
  kByOwner,   ///< the rank that the slice belongs to, from the sources
  kInParts,   ///< some ranks add up theirs, their sums travel, and the owner adds these up
  kOnTheWay,  ///< whoever moves, and what it moves is what it adds to
};

/// The type that a reduce-scatter of `src` to `dst` moves.
constexpr at::ScalarType wire_of(Summing summing, at::ScalarType dst, at::ScalarType src) {
  switch (summing) {
    case Summing::kByOwner: return src;
    case Summing::kInParts: return is_widening(at::kFloat, src) ? at::kFloat : src;
    case Summing::kOnTheWay: return dst;
  }
  return src;
}

}  // namespace fsdp::comm::detail
