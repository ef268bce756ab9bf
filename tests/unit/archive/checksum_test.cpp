// SPDX-License-Identifier: Apache-2.0
#include "archive/checksum.hpp"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::archive {
namespace {

// The check value of CRC-32/ISO-HDLC, which zlib, gzip and PNG use.
TEST(ChecksumTest, IsTheCrc32OfZlib) {
  EXPECT_EQ(crc32("123456789", 9), 0xcbf43926u);
  EXPECT_EQ(crc32_text(0xcbf43926u), "cbf43926");
  EXPECT_EQ(crc32_text(0x1au), "0000001a");
  EXPECT_EQ(crc32(nullptr, 0), 0u);
}

TEST(ChecksumTest, SumsOfPartsJoinToTheSumOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += static_cast<char>(i * i);
  }
  const std::uint32_t whole = crc32(text.data(), text.size());
  for (std::size_t cut : {0u, 1u, 7u, 2500u, 4999u, 5000u}) {
    const std::uint32_t first = crc32(text.data(), cut);
    const std::uint32_t second = crc32(text.data() + cut, text.size() - cut);
    EXPECT_EQ(crc32_joined(first, second, static_cast<std::int64_t>(text.size() - cut)), whole);
    EXPECT_EQ(crc32(text.data() + cut, text.size() - cut, first), whole);
  }
}

// The sums are those of Python's zlib over 6 GiB of zeros, and the same followed by "123456789".
TEST(ChecksumTest, RangesLongerThanFourGigabytesJoin) {
  const std::string zeros(1 << 10, '\0');
  std::uint32_t sum = crc32(zeros.data(), zeros.size());
  std::uint32_t two_gib = 0;
  std::int64_t bytes = 1 << 10;
  for (; bytes < std::int64_t{4} << 30; bytes *= 2) {
    two_gib = sum;
    sum = crc32_joined(sum, sum, bytes);
  }
  sum = crc32_joined(two_gib, sum, bytes);
  EXPECT_EQ(sum, 0xc64e0e30u);
  EXPECT_EQ(crc32_joined(sum, 0xcbf43926u, 9), 0x23ca184bu);
}

}  // namespace
}  // namespace fsdp::archive
