// SPDX-License-Identifier: Apache-2.0
#include "tokens/normalizer.hpp"

#include <gmock/gmock.h>

#include <random>

#include "tokens/utf8.hpp"

namespace fsdp::tokens::detail {
namespace {

TEST(NormalizerTest, ComposesAsUnicodeSays) {
  // UAX 15 and NormalizationTest.txt.
  EXPECT_EQ(composed("e\u0301"), "\u00e9");
  EXPECT_EQ(composed("cafe\u0301 e\u0301 noir"), "caf\u00e9 \u00e9 noir");
  EXPECT_EQ(composed("\u1e0b\u0323"), "\u1e0d\u0307");
  EXPECT_EQ(composed("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(composed("\u2126"), "\u03a9");
  EXPECT_EQ(composed("\u0958"), "\u0915\u093c") << "excluded from composition";
  EXPECT_EQ(composed("\u0301 a\u0327\u0301"), "\u0301 \u00e1\u0327") << "canonical order";
}

TEST(NormalizerTest, WhatIsComposedStays) {
  for (const char* text : {"", "plain", "\u00e9", "\u0301", "x\u0336y", "\u2460 \ufb01 \u00bd"}) {
    EXPECT_EQ(composed(text), std::nullopt) << text;
  }
  EXPECT_EQ(composed(std::string("a\0b", 3)), std::nullopt);
}

TEST(NormalizerTest, RunByRunIsAsTheWhole) {
  constexpr std::uint32_t kSome[] = {'a',    'e',    ' ',    'z',    0xe9,  0x301, 0x323,  0x327,
                                     0x1100, 0x1161, 0x11a8, 0xac00, 0x915, 0x93c, 0x1e0b, 0x308};
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text, spread;
    for (unsigned i = random() % 12; i > 0; --i) {
      append_utf8(text, kSome[random() % std::size(kSome)]);
    }
    // ASCII alone is never in the middle of a composition: both ends stay what they are.
    const std::string expected = "<" + composed(text).value_or(text) + ">";
    spread = "<" + text + ">";
    if (!text.starts_with("\u0301") && !text.starts_with("\u0323") && !text.starts_with("\u0327") &&
        !text.starts_with("\u0308")) {
      ASSERT_EQ(composed(spread).value_or(spread), expected) << text;
    }
  }
}

TEST(NormalizerTest, StepsFollowOneAnother) {
  const Normalizer sentencepiece({{.kind = NormalStep::Kind::kPrepend, .to = "_"},
                                  {.kind = NormalStep::Kind::kReplace, .from = " ", .to = "_"}});
  EXPECT_EQ(sentencepiece.changed(" a  b"), "__a__b");
  EXPECT_EQ(sentencepiece.changed(""), std::nullopt);
  EXPECT_EQ(Normalizer().changed("a b"), std::nullopt);
}

}  // namespace
}  // namespace fsdp::tokens::detail
