// SPDX-License-Identifier: Apache-2.0
#include "archive/elements.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {
namespace {

/// A float type of 16 bits: a sign, `kExponentBits`, and the rest for the fraction.
template <int kExponentBits>
struct Small {
  static constexpr int kFractionBits = 15 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kSpecial = (1 << kExponentBits) - 1;

  static double decode(std::uint16_t bits) {
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const int exponent = (bits >> kFractionBits) & kSpecial;
    const int fraction = bits & ((1 << kFractionBits) - 1);
    if (exponent == kSpecial) {
      return fraction == 0 ? sign * HUGE_VAL : std::copysign(std::nan(""), sign);
    }
    const int whole = exponent == 0 ? fraction : fraction + (1 << kFractionBits);
    return sign * std::ldexp(whole, (exponent == 0 ? 1 : exponent) - kBias - kFractionBits);
  }

  static std::uint16_t encode(double value) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const int infinity = kSpecial << kFractionBits;
    if (std::isnan(value)) {
      return static_cast<std::uint16_t>(sign | infinity | (1 << (kFractionBits - 1)));
    }
    const double magnitude = std::fabs(value);
    if (std::isinf(magnitude)) {
      return static_cast<std::uint16_t>(sign | infinity);
    }
    // In units of the last place; below the least normal number the place stays where it is.
    int exponent = magnitude == 0 ? 1 - kBias : std::ilogb(magnitude);
    exponent = std::max(exponent, 1 - kBias);
    const auto units =
        static_cast<std::int64_t>(std::nearbyint(std::ldexp(magnitude, kFractionBits - exponent)));
    // Rounding up to the next power of two carries into the exponent by itself.
    const std::int64_t bits =
        (static_cast<std::int64_t>(exponent + kBias - 1) << kFractionBits) + units;
    return static_cast<std::uint16_t>(sign | (bits < infinity ? bits : infinity));
  }
};

using Half = Small<5>;
using BFloat16 = Small<8>;

template <class Stored, class Decode>
void decode_all(const void* src, std::int64_t count, double* dst, Decode&& decode) {
  const char* next = static_cast<const char*>(src);
  for (std::int64_t i = 0; i < count; ++i, next += sizeof(Stored)) {
    Stored stored;
    std::memcpy(&stored, next, sizeof stored);
    dst[i] = decode(stored);
  }
}

template <class Stored, class Encode>
void encode_all(const double* src, std::int64_t count, void* dst, Encode&& encode) {
  char* next = static_cast<char*>(dst);
  for (std::int64_t i = 0; i < count; ++i, next += sizeof(Stored)) {
    const Stored stored = encode(src[i]);
    std::memcpy(next, &stored, sizeof stored);
  }
}

}  // namespace

bool is_floating(const std::string& dtype) {
  return dtype == "F32" || dtype == "F64" || dtype == "F16" || dtype == "BF16";
}

void to_double(const std::string& dtype, const void* src, std::int64_t count, double* dst) {
  if (dtype == "F32") {
    decode_all<float>(src, count, dst, [](float value) { return static_cast<double>(value); });
  } else if (dtype == "F64") {
    decode_all<double>(src, count, dst, [](double value) { return value; });
  } else if (dtype == "F16") {
    decode_all<std::uint16_t>(src, count, dst, Half::decode);
  } else {
    FSDP_ASSERT(dtype == "BF16", dtype);
    decode_all<std::uint16_t>(src, count, dst, BFloat16::decode);
  }
}

void from_double(const std::string& dtype, const double* src, std::int64_t count, void* dst) {
  if (dtype == "F32") {
    encode_all<float>(src, count, dst, [](double value) { return static_cast<float>(value); });
  } else if (dtype == "F64") {
    encode_all<double>(src, count, dst, [](double value) { return value; });
  } else if (dtype == "F16") {
    encode_all<std::uint16_t>(src, count, dst, Half::encode);
  } else {
    FSDP_ASSERT(dtype == "BF16", dtype);
    encode_all<std::uint16_t>(src, count, dst, BFloat16::encode);
  }
}

}  // namespace fsdp::archive::detail
