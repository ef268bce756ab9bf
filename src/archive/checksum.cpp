// SPDX-License-Identifier: Apache-2.0
#include "archive/checksum.hpp"

#include <libdeflate.h>

#include <cstdio>

// NOTE [sums of neighbours]
// A sum is the remainder of the bytes, read as a polynomial over the integers modulo 2, divided by
// kPolynomial. Bytes that follow multiply it by x^8 each, so the sum of both ranges is
// first * x^(8 bytes) + second. The highest bit is the coefficient of x^0.
namespace fsdp::archive {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // without its x^32
constexpr std::uint32_t kOne = 0x80000000;
constexpr std::uint32_t kX8 = kOne >> 8;

std::uint32_t times_x(std::uint32_t a) { return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0); }

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (; a != 0; a <<= 1) {
    sum ^= (a & kOne) != 0 ? b : 0;
    b = times_x(b);
  }
  return sum;
}

/// x^(8 bytes), by squaring.
std::uint32_t shift(std::int64_t bytes) {
  std::uint32_t power = kOne;
  for (std::uint32_t square = kX8; bytes > 0; bytes >>= 1) {
    power = (bytes & 1) != 0 ? product(power, square) : power;
    square = product(square, square);
  }
  return power;
}

}  // namespace

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  return bytes == 0 ? before : libdeflate_crc32(before, data, bytes);
}

// See NOTE [sums of neighbours]
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t bytes) {
  return product(first, shift(bytes)) ^ second;
}

std::string crc32_text(std::uint32_t sum) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

}  // namespace fsdp::archive
