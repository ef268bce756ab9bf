// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "fsdp/tokens/tokenizer.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"
#include "unit/tokens/small_tokenizer.hpp"

namespace fsdp::tokens {
namespace {

using test::added_token;
using test::error_of;
using test::Pair;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// 256: "th", 257: "the", 258: " the", 259: "\xc3\xa9" (e acute), 260: "  ".
const std::vector<Pair> kMerges = {
    {"t", "h"}, {"th", "e"}, {" ", "the"}, {"\xc3", "\xa9"}, {" ", " "}};

class EncodeTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> load(const nlohmann::json& json) {
    return tokens::load(directory_.write("tokenizer.json", json.dump()));
  }
  static std::string random_bytes(std::mt19937& random, std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) {
      bytes.push_back(
          static_cast<char>(random() % 3 == 0 ? random() & 0xff : "the \xc3\xa9"[random() % 6]));
    }
    return bytes;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(EncodeTest, PiecesAreMergedByThemselves) {
  const auto tokenizer = load(test::tokenizer_json(kMerges));
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_THAT(tokenizer->encode("the the\u00e9"), ElementsAre(257, 258, 259));
  // "the" and "t he" differ: no merge crosses the places where the pattern cuts.
  EXPECT_THAT(tokenizer->encode("t he"), ElementsAre('t', ' ', 'h', 'e'));
  EXPECT_THAT(tokenizer->encode("   the"), ElementsAre(260, 258));
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
  EXPECT_THAT(tokenizer->encode(std::string("\0", 1)), ElementsAre(0));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the the\u00e9")), "the the\u00e9");
}

TEST_F(EncodeTest, AnyBytesComeBack) {
  const auto tokenizer = load(test::tokenizer_json(kMerges));
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string text = random_bytes(random, random() % 300);
    const auto ids = tokenizer->encode(text);
    ASSERT_EQ(tokenizer->decode(ids), text);
    // What is known from before changes nothing.
    ASSERT_EQ(tokenizer->encode(text), ids);
  }
}

TEST_F(EncodeTest, BrokenBytesAreAPieceBetweenTexts) {
  const auto tokenizer = load(test::tokenizer_json({{"\xff", "\xfe"}, {"a", "\xff"}, {"a", "b"}}));
  EXPECT_THAT(tokenizer->encode("ab\xff\xfe"), ElementsAre(258, 256));
  EXPECT_THAT(tokenizer->encode("\xff\xfe\xff\xfe"), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer->encode("a\xff"), ElementsAre('a', 0xff));
  EXPECT_THAT(tokenizer->encode("\xe2\x82"), ElementsAre(0xe2, 0x82));
}

TEST_F(EncodeTest, SpecialTokensInTheTextAreTextUnlessAskedFor) {
  auto json = test::tokenizer_json(kMerges);
  json["added_tokens"] = {added_token(261, "<|end|>"), added_token(262, "<|end|>>"),
                          added_token(263, "  ab", false)};
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->vocab_size(), 264);
  const std::string text = "the<|end|>the";
  EXPECT_EQ(tokenizer->encode(text).size(), 2 + 7u);
  EXPECT_THAT(tokenizer->encode(text, {.special_tokens = true}), ElementsAre(257, 261, 257));
  EXPECT_THAT(tokenizer->encode("<|end|>>", {.special_tokens = true}), ElementsAre(262));
  // One that is not special is always found.
  EXPECT_THAT(tokenizer->encode("the  ab"), ElementsAre(257, 263));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {.special_tokens = true})), text);
  ASSERT_EQ(tokenizer->special_tokens().size(), 2u);
  EXPECT_EQ(tokenizer->special_tokens()[0].text, "<|end|>");
}

TEST_F(EncodeTest, AWholePieceMayGoBeforeItsMerges) {
  // "abc" is a token that no merge leads to.
  auto json = test::tokenizer_json({{"a", "b"}});
  json["model"]["vocab"]["abc"] = 300;
  EXPECT_THAT(load(json)->encode("abc"), ElementsAre(256, 'c'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(json)->encode("abc abc"), ElementsAre(300, ' ', 256, 'c'));
  EXPECT_EQ(load(json)->vocab_size(), 301);
  EXPECT_THAT(error_of([&] { load(json)->decode(std::vector<std::int64_t>{299}); }),
              HasSubstr("has no token 299; its ids are below 301"));
}

TEST_F(EncodeTest, StagesCutOneAfterTheOther) {
  auto json = test::tokenizer_json({{" ", "1"}, {"1", "2"}});
  EXPECT_THAT(load(json)->encode("x 12"), ElementsAre('x', 256, '2'));
  EXPECT_THAT(load(json)->encode("12"), ElementsAre(257));
  const auto byte_level = json["pre_tokenizer"];
  const auto cut_by = [&](const nlohmann::json& first) {
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", nlohmann::json::array({first, byte_level})}};
    return load(json)->encode("x 12");
  };
  EXPECT_THAT(cut_by({{"type", "Digits"}, {"individual_digits", true}}),
              ElementsAre('x', ' ', '1', '2'));
  EXPECT_THAT(cut_by({{"type", "Digits"}, {"individual_digits", false}}),
              ElementsAre('x', ' ', 257));
  EXPECT_THAT(cut_by({{"type", "Split"},
                      {"pattern", {{"Regex", " 1"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}}),
              ElementsAre('x', 256, '2'));
}

TEST_F(EncodeTest, AByteWithoutATokenIsNamed) {
  auto json = test::tokenizer_json(kMerges);
  json["model"]["vocab"].erase("q");
  const auto tokenizer = load(json);
  EXPECT_THAT(tokenizer->encode("the"), ElementsAre(257));
  EXPECT_THAT(
      error_of([&] { tokenizer->encode("a quick"); }),
      HasSubstr("' quick' cannot be encoded, for the vocabulary has no token for byte 113"));
  const EncodeOptions drop{.drop_unknown = true};
  EXPECT_THAT(tokenizer->encode("tqhe qq", drop), ElementsAre(257, ' '));
  // What was dropped is not taken for known.
  EXPECT_THAT(error_of([&] { tokenizer->encode("tqhe"); }), HasSubstr("no token for byte 113"));
  // And it goes on afterwards.
  EXPECT_THAT(tokenizer->encode("the"), ElementsAre(257));
}

TEST_F(EncodeTest, LongTextsComeInPartsThatCountTheirBytes) {
  const auto tokenizer = load(test::tokenizer_json(kMerges));
  std::string text;
  for (int i = 0; i < 50'000; ++i) {
    text += i % 7 == 0 ? " the\n" : " x\u00e9";
  }
  std::vector<std::int64_t> all;
  std::size_t parts = 0, last = 0;
  tokenizer->encode(text, {}, [&](std::span<const std::int64_t> ids, std::size_t bytes) {
    all.insert(all.end(), ids.begin(), ids.end());
    EXPECT_EQ(tokenizer->decode(all).size(), bytes);
    EXPECT_GE(bytes, last);
    last = bytes;
    ++parts;
  });
  EXPECT_GT(parts, 2u);
  EXPECT_EQ(last, text.size());
  EXPECT_EQ(tokenizer->decode(all), text);
}

TEST_F(EncodeTest, ManyDifferentPiecesAreForgottenAndFoundAgain) {
  const auto tokenizer = load(test::tokenizer_json(kMerges));
  std::string text;
  for (int i = 0; i < 300'000; ++i) {
    text += " the" + std::to_string(i);
  }
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(ids.front(), 258);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->encode(text), ids);
}

TEST_F(EncodeTest, ThreadsMayShareATokenizer) {
  const auto tokenizer = load(test::tokenizer_json(kMerges));
  std::mt19937 random(1);
  const std::string text = random_bytes(random, 20'000);
  const auto expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::int64_t>> all(4);
  for (auto& ids : all) {
    threads.emplace_back([&] { ids = tokenizer->encode(text); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& ids : all) {
    EXPECT_EQ(ids, expected);
  }
}

TEST(BytesTest, AreTheirValues) {
  const auto tokenizer = bytes();
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_THAT(tokenizer->encode("A\xff\n"), ElementsAre(65, 255, 10));
  std::string text;
  for (unsigned i = 0; i < 100'000; ++i) {
    text.push_back(static_cast<char>(i * i));
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_THAT(error_of([&] { tokenizer->decode(std::vector<std::int64_t>{256}); }),
              HasSubstr("has no token 256"));
  EXPECT_FALSE(tokenizer->token(-1));
}

}  // namespace
}  // namespace fsdp::tokens
