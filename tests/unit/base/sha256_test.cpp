// SPDX-License-Identifier: Apache-2.0
/// Values of FIPS 180-4 and RFC 4231.
#include "base/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::base {
namespace {

std::string hex(const Digest& digest) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : digest) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

TEST(Sha256, GivesTheValuesOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, TakesBytesInPieces) {
  const std::string bytes(200, 'x');
  Sha256 hash;
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    hash.add(std::string_view(bytes).substr(at, 7));
  }
  EXPECT_EQ(hash.finish(), sha256(bytes));
}

TEST(HmacSha256, GivesTheValuesOfTheStandard) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(AreEqual, ComparesLengthAndBytes) {
  EXPECT_TRUE(are_equal("", ""));
  EXPECT_TRUE(are_equal("same", "same"));
  EXPECT_FALSE(are_equal("same", "sane"));
  EXPECT_FALSE(are_equal("same", "sam"));
}

}  // namespace
}  // namespace fsdp::base
