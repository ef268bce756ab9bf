// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/non_finite.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace fsdp::engine {

namespace {

/// Fits the first-level cache of any processor twice.
constexpr std::int64_t kChunkBytes = 8192;
/// What a thread is worth starting for.
constexpr std::int64_t kGrainBytes = 1 << 17;

/// Such an element has all bits of its exponent set. A loop without a branch becomes vectors.
template <class Bits>
bool any(const void* data, std::int64_t bytes, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(data);
  const std::int64_t numel = bytes / static_cast<std::int64_t>(sizeof(Bits));
  Bits found = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    found = static_cast<Bits>(found | static_cast<Bits>((bits[i] & exponent) == exponent));
  }
  return found != 0;
}

bool any(at::ScalarType dtype, const void* data, std::int64_t bytes) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble: return any<std::uint64_t>(data, bytes, 0x7ff0000000000000U);
    case at::kFloat:
    case at::kComplexFloat: return any<std::uint32_t>(data, bytes, 0x7f800000U);
    case at::kBFloat16: return any<std::uint16_t>(data, bytes, 0x7f80U);
    case at::kHalf: return any<std::uint16_t>(data, bytes, 0x7c00U);
    default: return false;
  }
}

/// Calls visit(begin, bytes) -> bool for all chunks of `bytes` bytes, by as many threads as
/// LibTorch uses for a copy; whether any was true.
template <class Visit>
bool any_chunk(std::int64_t bytes, Visit visit) {
  std::atomic<bool> found = false;
  at::parallel_for(0, bytes, kGrainBytes, [&](std::int64_t begin, std::int64_t end) {
    // At a multiple, whichever thread: so between elements, and each chunk once.
    begin = (begin + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    bool is_found = false;
    for (; begin < end; begin += kChunkBytes) {
      is_found = visit(begin, std::min(kChunkBytes, bytes - begin)) || is_found;
    }
    if (is_found) {
      found = true;
    }
  });
  return found;
}

}  // namespace

bool has_non_finite(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return any_chunk(static_cast<std::int64_t>(tensor.nbytes()),
                   [&](std::int64_t begin, std::int64_t bytes) {
                     return any(tensor.scalar_type(), data + begin, bytes);
                   });
}

bool copy_has_non_finite(const at::Tensor& dst, const at::Tensor& src) {
  const bool is_plain = dst.is_cpu() && src.is_cpu() && dst.scalar_type() == src.scalar_type() &&
                        dst.is_contiguous() && src.is_contiguous() && dst.sizes() == src.sizes() &&
                        !src.is_conj() && !src.is_neg();
  if (!is_plain) {
    dst.copy_(src);
    return has_non_finite(dst);
  }
  auto* to = static_cast<char*>(dst.mutable_data_ptr());
  const auto* from = static_cast<const char*>(src.const_data_ptr());
  return any_chunk(static_cast<std::int64_t>(src.nbytes()),
                   [&](std::int64_t begin, std::int64_t bytes) {
                     std::memcpy(to + begin, from + begin, static_cast<std::size_t>(bytes));
                     return any(src.scalar_type(), to + begin, bytes);
                   });
}

}  // namespace fsdp::engine
