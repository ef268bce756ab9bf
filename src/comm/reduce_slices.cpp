// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce_slices.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "comm/wire.hpp"
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

/// What is done to the sums of all blocks.
struct Ending {
  Finish finish;
  bool is_streamed = false;  ///< dst is too large to stay in a cache
};

/// A division by a power of two is a multiplication, to the bit.
template <class Sum>
bool has_exact_inverse(double divisor) {
  int exponent = 0;
  return std::is_floating_point_v<Sum> && std::abs(std::frexp(divisor, &exponent)) == 0.5 &&
         std::abs(exponent) < 100;
}

template <class Sum>
void divide(Sum* sums, std::int64_t count, double divisor) {
  if (divisor == 1.0) {
    return;
  }
  if (has_exact_inverse<Sum>(divisor)) {
    const auto inverse = static_cast<Sum>(1.0 / divisor);
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] *= inverse;
    }
    return;
  }
  const auto by = static_cast<Sum>(divisor);
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] /= by;
  }
}

template <class Sum, class Dst>
void store(Dst* dst, const Sum* sums, std::int64_t count, bool) {
  for (std::int64_t i = 0; i < count; ++i) {
    dst[i] = static_cast<Dst>(sums[i]);
  }
}

#if defined(__SSE2__)
/// Past the caches: a plain store reads the line that it overwrites first.
void store(float* dst, const float* sums, std::int64_t count, bool is_streamed) {
  constexpr std::int64_t kLanes = 4;
  std::int64_t i = 0;
  if (is_streamed && reinterpret_cast<std::uintptr_t>(dst) % 16 == 0) {
    for (; i + kLanes <= count; i += kLanes) {
      _mm_stream_ps(dst + i, _mm_loadu_ps(sums + i));
    }
  }
  std::copy(sums + i, sums + count, dst + i);
}
#endif

template <class T, class Dst>
void reduce_block(Dst* dst, std::span<const void* const> slices, std::int64_t begin,
                  std::int64_t count, const Ending& ending) {
  using Sum = typename Accumulator<T>::type;
  std::array<Sum, kBlock> block;
  Sum* sums = block.data();
  const auto slice = [&](std::size_t k) { return static_cast<const T*>(slices[k]) + begin; };
  const T* first = slice(0);
  if (slices.size() == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] = static_cast<Sum>(first[i]);
    }
  } else {
    const T* second = slice(1);
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] = static_cast<Sum>(first[i]) + static_cast<Sum>(second[i]);
    }
  }
  for (std::size_t k = 2; k < slices.size(); ++k) {
    const T* next = slice(k);
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] += static_cast<Sum>(next[i]);
    }
  }
  divide(sums, count, ending.finish.divisor);
  if (ending.finish.accumulate) {
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] = static_cast<Sum>(dst[begin + i]) + sums[i];
    }
  }
  store(dst + begin, sums, count, ending.is_streamed);
}

template <class T, class Dst = T>
void reduce_all(void* dst, std::span<const void* const> slices, std::int64_t numel,
                const Finish& finish) {
  constexpr std::int64_t kStreamedBytes = std::int64_t{4} << 20;
  const Ending ending{
      .finish = finish,
      .is_streamed = numel * static_cast<std::int64_t>(sizeof(Dst)) >= kStreamedBytes};
  at::parallel_for(0, numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kBlock) {
      reduce_block<T>(static_cast<Dst*>(dst), slices, at, std::min(kBlock, end - at), ending);
    }
#if defined(__SSE2__)
    _mm_sfence();  // what was streamed is seen before what says that it is there
#endif
  });
}

}  // namespace

void check_reduction(at::ScalarType dtype, const Finish& finish) {
  FSDP_CHECK(finish.divisor != 0.0, ErrorCode::kInvalidArgument,
             "a reduction divides by zero; the divisor is usually the number of ranks");
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf: return;
    case at::kInt:
    case at::kLong:
      FSDP_CHECK(std::trunc(finish.divisor) == finish.divisor, ErrorCode::kInvalidArgument,
                 "a reduction of integers divides by ", finish.divisor,
                 ", must divide by an integer");
      return;
    default:
      fail(ErrorCode::kUnsupported, "a reduction of ", c10::toString(dtype),
           " is not supported; use float32, float64, bfloat16, float16, int32 or int64");
  }
}

void reduce_slices(void* dst, at::ScalarType dst_dtype, std::span<const void* const> slices,
                   std::int64_t numel, at::ScalarType src_dtype, const Finish& finish) {
  check_reduction(src_dtype, finish);
  FSDP_ASSERT(!slices.empty(), "a reduction without slices");
  const bool widens = is_widening(dst_dtype, src_dtype);
  FSDP_ASSERT(dst_dtype == src_dtype || widens || is_widening(src_dtype, dst_dtype),
              "a reduction to another dtype");
  switch (src_dtype) {
    case at::kFloat:
      switch (dst_dtype) {
        case at::kBFloat16: return reduce_all<float, c10::BFloat16>(dst, slices, numel, finish);
        case at::kHalf: return reduce_all<float, c10::Half>(dst, slices, numel, finish);
        default: return reduce_all<float>(dst, slices, numel, finish);
      }
    case at::kDouble: return reduce_all<double>(dst, slices, numel, finish);
    case at::kBFloat16:
      return widens ? reduce_all<c10::BFloat16, float>(dst, slices, numel, finish)
                    : reduce_all<c10::BFloat16>(dst, slices, numel, finish);
    case at::kHalf:
      return widens ? reduce_all<c10::Half, float>(dst, slices, numel, finish)
                    : reduce_all<c10::Half>(dst, slices, numel, finish);
    case at::kInt: return reduce_all<std::int32_t>(dst, slices, numel, finish);
    default: return reduce_all<std::int64_t>(dst, slices, numel, finish);
  }
}

}  // namespace fsdp::comm::detail
