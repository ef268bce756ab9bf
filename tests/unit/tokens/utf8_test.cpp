// SPDX-License-Identifier: Apache-2.0
#include "tokens/utf8.hpp"

#include <gmock/gmock.h>

#include "fsdp/tokens/tokenizer.hpp"
#include "tokens/byte_alphabet.hpp"

namespace fsdp::tokens::detail {
namespace {

TEST(Utf8Test, EveryCodePointIsWrittenAndReadBack) {
  for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
    std::string text;
    append_utf8(text, code);
    const bool is_surrogate = code >= 0xd800 && code < 0xe000;
    ASSERT_EQ(character_bytes(text), is_surrogate ? 0 : text.size()) << code;
    if (!is_surrogate) {
      ASSERT_EQ(code_point(text), code);
    }
  }
}

TEST(Utf8Test, WhatIsNoCharacterHasNoBytes) {
  for (const char* broken : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                             "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
                             "\xc3", "\xe2\x82", "\xf0\x9f\x91", "\xc3(", "\xe2(\xa1"}) {
    EXPECT_EQ(character_bytes(broken), 0u) << printable(broken);
    EXPECT_EQ(valid_bytes(std::string("12345678abc") + broken + "x"), 11u) << printable(broken);
  }
  EXPECT_EQ(character_bytes(""), 0u);
  EXPECT_EQ(valid_bytes(std::string("\0\0", 2)), 2u);
}

TEST(Utf8Test, PrintableKeepsTextAndShowsControlCharacters) {
  EXPECT_EQ(printable("a\tb\n\u00e9\U0001f469"), "a\tb\n\u00e9\U0001f469");
  EXPECT_EQ(printable("\x1b[0m\xff\x7f\r\u0085"), "\\x1b[0m\\xff\\x7f\\x0d\\xc2\\x85");
}

TEST(ByteAlphabetTest, IsGpt2s) {
  EXPECT_EQ(symbol_of_byte('a'), "a");
  EXPECT_EQ(symbol_of_byte(' '), "\u0120");
  EXPECT_EQ(symbol_of_byte('\n'), "\u010a");
  EXPECT_EQ(symbol_of_byte(0xad), "\u0143");
  EXPECT_EQ(symbol_of_byte(0xe9), "\u00e9");
  for (int byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<unsigned char>(byte);
    EXPECT_EQ(bytes_of_symbols(symbol_of_byte(value)), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_FALSE(bytes_of_symbols("a b"));
  EXPECT_FALSE(bytes_of_symbols("\u0144"));
  EXPECT_FALSE(bytes_of_symbols("\xff"));
}

}  // namespace
}  // namespace fsdp::tokens::detail
