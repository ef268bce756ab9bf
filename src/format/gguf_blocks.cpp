// SPDX-License-Identifier: Apache-2.0
/// Elements of GGUF tensors. Block layouts: ggml's `block_q4_1` and `block_q8_0`.
#include <bit>
#include <cmath>
#include <cstring>

#include "format/gguf.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format {
namespace {

constexpr std::int64_t kBlockElements = 32;

std::uint16_t load16(const std::uint8_t* src) {
  return static_cast<std::uint16_t>(src[0] | src[1] << 8);
}

/// IEEE 754 binary16.
float from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1f) {
    return fraction == 0 ? sign * HUGE_VALF : std::nanf("");
  }
  const int whole = exponent == 0 ? fraction : fraction | 0x400;
  return sign * std::ldexp(static_cast<float>(whole), (exponent == 0 ? 1 : exponent) - 25);
}

/// The upper half of a float.
float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// A scale and 32 signed bytes.
void decode_q8_0(const std::uint8_t* block, float* dst) {
  const float scale = from_half(load16(block));
  for (int i = 0; i < kBlockElements; ++i) {
    dst[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
  }
}

/// A scale, a least value, and 32 numbers of 4 bits: the low halves of 16 bytes, then the high
/// ones.
void decode_q4_1(const std::uint8_t* block, float* dst) {
  const float scale = from_half(load16(block)), least = from_half(load16(block + 2));
  for (int i = 0; i < kBlockElements / 2; ++i) {
    dst[i] = scale * static_cast<float>(block[4 + i] & 0xf) + least;
    dst[i + kBlockElements / 2] = scale * static_cast<float>(block[4 + i] >> 4) + least;
  }
}

}  // namespace

GgufBlock block_of(GgufType type) {
  switch (type) {
    case GgufType::kF32: return {.elements = 1, .bytes = 4};
    case GgufType::kF16:
    case GgufType::kBF16: return {.elements = 1, .bytes = 2};
    case GgufType::kQ8_0: return {.elements = kBlockElements, .bytes = 34};
    case GgufType::kQ4_1: return {.elements = kBlockElements, .bytes = 20};
  }
  fail(ErrorCode::kInternal, "GGUF type ", static_cast<std::uint32_t>(type));
}

void decode_blocks(GgufType type, const void* src, std::int64_t blocks, float* dst) {
  const GgufBlock block = block_of(type);
  const auto* bytes = static_cast<const std::uint8_t*>(src);
  for (std::int64_t i = 0; i < blocks; ++i, bytes += block.bytes, dst += block.elements) {
    switch (type) {
      case GgufType::kF32: std::memcpy(dst, bytes, sizeof(float)); break;
      case GgufType::kF16: *dst = from_half(load16(bytes)); break;
      case GgufType::kBF16: *dst = from_bfloat16(load16(bytes)); break;
      case GgufType::kQ8_0: decode_q8_0(bytes, dst); break;
      case GgufType::kQ4_1: decode_q4_1(bytes, dst); break;
    }
  }
}

}  // namespace fsdp::format
