// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/non_finite.hpp"

#include <algorithm>

namespace fsdp::engine {

namespace {

/// Such an element has all bits of its exponent set.
template <class Bits>
std::int64_t first(const void* data, std::int64_t numel, Bits exponent) {
  constexpr std::int64_t kBlock = 1024;
  const auto* bits = static_cast<const Bits*>(data);
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, numel);
    Bits found = 0;  // a loop without a branch becomes vectors
    for (std::int64_t i = begin; i < end; ++i) {
      found = static_cast<Bits>(found | static_cast<Bits>((bits[i] & exponent) == exponent));
    }
    for (std::int64_t i = begin; found != 0 && i < end; ++i) {
      if ((bits[i] & exponent) == exponent) {
        return i;
      }
    }
  }
  return -1;
}

}  // namespace

std::int64_t first_non_finite(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    return -1;
  }
  const void* data = tensor.const_data_ptr();
  const std::int64_t numel = tensor.numel();
  switch (tensor.scalar_type()) {
    case at::kDouble: return first<std::uint64_t>(data, numel, 0x7ff0000000000000U);
    case at::kFloat: return first<std::uint32_t>(data, numel, 0x7f800000U);
    case at::kBFloat16: return first<std::uint16_t>(data, numel, 0x7f80U);
    case at::kHalf: return first<std::uint16_t>(data, numel, 0x7c00U);
    case at::kComplexDouble: {
      const std::int64_t at = first<std::uint64_t>(data, 2 * numel, 0x7ff0000000000000U);
      return at < 0 ? at : at / 2;
    }
    case at::kComplexFloat: {
      const std::int64_t at = first<std::uint32_t>(data, 2 * numel, 0x7f800000U);
      return at < 0 ? at : at / 2;
    }
    default: return -1;
  }
}

}  // namespace fsdp::engine
