// SPDX-License-Identifier: Apache-2.0
#include "archive/elements.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace fsdp::archive::detail {
namespace {

std::uint16_t stored(const std::string& dtype, double value) {
  std::uint16_t bits = 0;
  from_double(dtype, &value, 1, &bits);
  return bits;
}

double value(const std::string& dtype, std::uint16_t bits) {
  double result = 0;
  to_double(dtype, &bits, 1, &result);
  return result;
}

TEST(ElementsTest, EveryValueOf16BitsReadsBackAsItself) {
  for (const char* dtype : {"F16", "BF16"}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double decoded = value(dtype, static_cast<std::uint16_t>(bits));
      if (std::isnan(decoded)) {
        EXPECT_TRUE(std::isnan(value(dtype, stored(dtype, decoded))));
      } else {
        ASSERT_EQ(stored(dtype, decoded), bits) << dtype << " " << decoded;
      }
    }
  }
}

// IEEE 754 binary16: one is 0x3c00, the largest 65504, the least subnormal 2^-24.
TEST(ElementsTest, KnownValues) {
  EXPECT_EQ(stored("F16", 1.0), 0x3c00);
  EXPECT_EQ(stored("F16", -2.0), 0xc000);
  EXPECT_EQ(stored("F16", 65504.0), 0x7bff);
  EXPECT_EQ(stored("F16", 65520.0), 0x7c00) << "rounds to infinity";
  EXPECT_EQ(stored("F16", std::ldexp(1.0, -24)), 1);
  EXPECT_EQ(stored("F16", std::ldexp(1.0, -25)), 0) << "a tie goes to even";
  EXPECT_EQ(stored("BF16", 1.0), 0x3f80);
  EXPECT_EQ(stored("BF16", -0.0), 0x8000);
  EXPECT_EQ(stored("BF16", 1.0 + 1.0 / 256), 0x3f80) << "a tie goes to even";
  EXPECT_EQ(stored("BF16", 1.0 + 3.0 / 256), 0x3f82) << "a tie goes to even";
  EXPECT_EQ(stored("BF16", std::numeric_limits<double>::infinity()), 0x7f80);
  EXPECT_EQ(stored("BF16", 1e39), 0x7f80);
}

// The usual route to bfloat16 by integers: add half of what is cut, and the last bit that stays.
TEST(ElementsTest, BFloat16OfFloatsIsRoundedToNearestEven) {
  std::uint32_t state = 12345;
  for (int i = 0; i < 100000; ++i) {
    state = state * 1664525 + 1013904223;
    const std::uint32_t bits = state & 0x7f7fffffu;
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    const auto expected = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    ASSERT_EQ(stored("BF16", static_cast<double>(number)), expected) << number;
  }
}

}  // namespace
}  // namespace fsdp::archive::detail
