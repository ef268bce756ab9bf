// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce_slices.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

// A block of partial sums stays in the first-level cache while every slice streams past it once.
constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kGrain = 64 * kBlock;

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<c10::BFloat16> {
  using type = float;
};
template <>
struct Accumulator<c10::Half> {
  using type = float;
};

template <class T, class Dst>
void reduce_block(Dst* dst, std::span<const void* const> slices, std::int64_t begin,
                  std::int64_t count, const Reduction& reduction) {
  using Sum = typename Accumulator<T>::type;
  std::array<Sum, kBlock> sums;
  const T* first = static_cast<const T*>(slices[0]) + begin;
  for (std::int64_t i = 0; i < count; ++i) {
    sums[static_cast<std::size_t>(i)] = static_cast<Sum>(first[i]);
  }
  for (std::size_t k = 1; k < slices.size(); ++k) {
    const T* slice = static_cast<const T*>(slices[k]) + begin;
    for (std::int64_t i = 0; i < count; ++i) {
      sums[static_cast<std::size_t>(i)] += static_cast<Sum>(slice[i]);
    }
  }
  if (reduction.divisor != 1.0) {
    const auto divisor = static_cast<Sum>(reduction.divisor);
    for (std::int64_t i = 0; i < count; ++i) {
      sums[static_cast<std::size_t>(i)] /= divisor;
    }
  }
  if (reduction.accumulate) {
    for (std::int64_t i = 0; i < count; ++i) {
      dst[begin + i] =
          static_cast<Dst>(static_cast<Sum>(dst[begin + i]) + sums[static_cast<std::size_t>(i)]);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      dst[begin + i] = static_cast<Dst>(sums[static_cast<std::size_t>(i)]);
    }
  }
}

template <class T, class Dst = T>
void reduce_all(void* dst, std::span<const void* const> slices, std::int64_t numel,
                const Reduction& reduction) {
  at::parallel_for(0, numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kBlock) {
      reduce_block<T>(static_cast<Dst*>(dst), slices, at, std::min(kBlock, end - at), reduction);
    }
  });
}

}  // namespace

bool is_widening(at::ScalarType dst, at::ScalarType src) {
  return dst == at::kFloat && (src == at::kBFloat16 || src == at::kHalf);
}

void check_reduction(at::ScalarType dtype, const Reduction& reduction) {
  FSDP_CHECK(reduction.divisor != 0.0, ErrorCode::kInvalidArgument,
             "a reduction divides by zero; the divisor is usually the number of ranks");
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf: return;
    case at::kInt:
    case at::kLong:
      FSDP_CHECK(std::trunc(reduction.divisor) == reduction.divisor, ErrorCode::kInvalidArgument,
                 "a reduction of integers divides by ", reduction.divisor,
                 ", must divide by an integer");
      return;
    default:
      fail(ErrorCode::kUnsupported, "a reduction of ", c10::toString(dtype),
           " is not supported; use float32, float64, bfloat16, float16, int32 or int64");
  }
}

void reduce_slices(void* dst, at::ScalarType dst_dtype, std::span<const void* const> slices,
                   std::int64_t numel, at::ScalarType src_dtype, const Reduction& reduction) {
  check_reduction(src_dtype, reduction);
  FSDP_ASSERT(!slices.empty(), "a reduction without slices");
  const bool widens = is_widening(dst_dtype, src_dtype);
  FSDP_ASSERT(dst_dtype == src_dtype || widens || is_widening(src_dtype, dst_dtype),
              "a reduction to another dtype");
  switch (src_dtype) {
    case at::kFloat:
      switch (dst_dtype) {
        case at::kBFloat16: return reduce_all<float, c10::BFloat16>(dst, slices, numel, reduction);
        case at::kHalf: return reduce_all<float, c10::Half>(dst, slices, numel, reduction);
        default: return reduce_all<float>(dst, slices, numel, reduction);
      }
    case at::kDouble: return reduce_all<double>(dst, slices, numel, reduction);
    case at::kBFloat16:
      return widens ? reduce_all<c10::BFloat16, float>(dst, slices, numel, reduction)
                    : reduce_all<c10::BFloat16>(dst, slices, numel, reduction);
    case at::kHalf:
      return widens ? reduce_all<c10::Half, float>(dst, slices, numel, reduction)
                    : reduce_all<c10::Half>(dst, slices, numel, reduction);
    case at::kInt: return reduce_all<std::int32_t>(dst, slices, numel, reduction);
    default: return reduce_all<std::int64_t>(dst, slices, numel, reduction);
  }
}

}  // namespace fsdp::comm::detail
