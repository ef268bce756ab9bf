// SPDX-License-Identifier: Apache-2.0
#include "tokens/pattern.hpp"

#include <gmock/gmock.h>

#include "support/error_of.hpp"
#include "tokens/regex.hpp"

namespace fsdp::tokens::detail {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(to_pcre2(pattern));
  std::vector<std::string> found;
  std::size_t at = 0;
  while (const auto match = regex.next(text, at)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}

TEST(PatternTest, Gpt2PartsWordsNumbersAndSpaces) {
  EXPECT_THAT(matches(kGpt2Pattern, "Hello world, it's 42  years\n"),
              ElementsAre("Hello", " world", ",", " it", "'s", " 42", " ", " years", "\n"));
}

TEST(PatternTest, SpaceIsUnicodesWhiteSpaceInAndOutOfClasses) {
  EXPECT_THAT(matches("\\s", "a\u00a0b\u180ec\u0085d\u3000"),
              ElementsAre("\u00a0", "\u0085", "\u3000"));
  EXPECT_THAT(matches("[\\s]+", " \u180e\n"), ElementsAre(" ", "\n"));
  EXPECT_THAT(matches("[^\\s]", " \u180e"), ElementsAre("\u180e"));
  EXPECT_THAT(matches("\\S", " \u180e"), ElementsAre("\u180e"));
}

TEST(PatternTest, DigitsAreNumbersOfAllScripts) {
  EXPECT_THAT(matches(kDigitPattern, "a1\u0661\u00bd"), ElementsAre("1", "\u0661", "\u00bd"));
  EXPECT_THAT(matches(kDigitsPattern, "12a\u2167"), ElementsAre("12", "\u2167"));
}

TEST(PatternTest, AnEmptyMatchIsPassedOver) {
  EXPECT_THAT(matches("a*", "baac"), ElementsAre("aa"));
}

TEST(PatternTest, ABracketMayBeTheFirstOfAClass) {
  EXPECT_THAT(matches("[]a]+", "]a["), ElementsAre("]a"));
  EXPECT_THAT(matches("[^]]", "]b"), ElementsAre("b"));
  EXPECT_THAT(matches("\\[x\\]", "[x]"), ElementsAre("[x]"));
}

TEST(PatternTest, WhatEnginesReadDifferentlyIsRefusedByName) {
  const auto refusal = [](const char* pattern) { return error_of([&] { to_pcre2(pattern); }); };
  for (const auto& [pattern, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"a\\w", "'\\w' at byte 1"},
           {"\\h", "'\\h'"},
           {"\\v", "'\\v'"},
           {"\\b", "'\\b'"},
           {"\\1", "'\\1'"},
           {"[a&&b]", "'&&'"},
           {"[a[b]]", "a class inside a class"},
           {"^a", "'^'"},
           {"a$", "'$'"},
           {".", "'.'"},
           {"(?<=a)b", "'(?<'"},
           {"(?i)a", "'(?i'"},
           {"a{1,3}+", "'}+'"},
           {"a\\", "'\\'"}}) {
    EXPECT_THAT(refusal(pattern), HasSubstr(says)) << pattern;
    EXPECT_THAT(refusal(pattern), HasSubstr("[unsupported]")) << pattern;
  }
  EXPECT_EQ(refusal("\\p{L}+[\\r\\n^$.]\\.(?i:a)(?:b)(?!c)(?=d)++"), "no error");
  EXPECT_THAT(error_of([] { Regex("(a"); }), HasSubstr("does not compile"));
  EXPECT_THAT(error_of([] { Regex(to_pcre2("\\p{Klingon}")); }), HasSubstr("does not compile"));
}

TEST(PatternTest, BacktrackingOverAMegabyteWorks) {
  const std::string text = std::string(1 << 20, ' ') + "x";
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", text).front().size(), (1u << 20) - 1);
}

}  // namespace
}  // namespace fsdp::tokens::detail
