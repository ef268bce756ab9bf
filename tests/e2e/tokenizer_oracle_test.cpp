// SPDX-License-Identifier: Apache-2.0
/// Published tokenizers give the ids that the reference implementations give: Hugging Face's
/// tokenizers and OpenAI's tiktoken. Needs `./dev data tokenizers`, and for SmolLM2's
/// `./dev data smollm2`; skipped without.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "e2e/program.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "support/temporary_directory.hpp"
#include "tokens/utf8.hpp"

namespace fsdp::test {
namespace {

using tokens::detail::append_utf8;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What tokenizers stumble over.
std::string hard_text() {
  std::string text =
      "\n\n\n \n  \n\t\n a\r\n\r\r\nb\n"
      "I'm you're we've they'll he'd it's DON'T WE'LL I'M '' 's'S'ſ '\n"
      "   leading, trailing   \n            x          12345678901234567890 3.14e-10 1,000,000\n"
      "👩\u200d👩\u200d👧 👍🏽 🇩🇪 ❤️\n"
      "e\u0301 é o\u0308\u0323 क्ष Z\u0336\u0327a\n"
      "你好，世界。 コンニチハ 안녕\n"
      "שלום مرحبا ١٢٣\n"
      "½ Ⅷ ² १२ 𝟘𝔞\n"
      "a\u00a0\u00a0z\u180ez\u200bz\u3000\u3000z\u0085z\u2028z\ufeff\n"
      "{\"key\": [1, 2]} <|endoftext|> <|begin_of_text|><|im_start|> "
      "for(;;){i++;}//--==>>!!??...\n";
  text += std::string("NUL \0 and \x01\x02\x7f\x1b[0m", 17) + std::string(5000, ' ') + "|" +
          std::string(5000, '\n') + "|" + std::string(3000, 'a') + std::string(3000, '-') +
          std::string(999, '\t') + "end";
  return text;
}

/// Words of random characters of the planes and scripts that all engines know.
std::string random_text(std::size_t characters) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kRanges[] = {
      {0x20, 0x7e},     {0x20, 0x7e},     {0xa0, 0x24f},    {0x300, 0x36f},     {0x370, 0x3ff},
      {0x400, 0x4ff},   {0x5d0, 0x5ea},   {0x620, 0x64a},   {0x660, 0x669},     {0x905, 0x939},
      {0x1e00, 0x1eff}, {0x2000, 0x206f}, {0x20a0, 0x20bf}, {0x2150, 0x2188},   {0x2190, 0x21ff},
      {0x3041, 0x3096}, {0x4e00, 0x9fa5}, {0xac00, 0xd7a3}, {0x1f300, 0x1f5ff}, {0x20000, 0x2a6d6}};
  std::mt19937 random(7);
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) {
    const auto& [first, last] = kRanges[random() % std::size(kRanges)];
    append_utf8(text, first + static_cast<std::uint32_t>(random()) % (last - first + 1));
    if (random() % 4 == 0) {
      text += random() % 16 == 0 ? '\n' : ' ';
    }
  }
  return text;
}

struct Published {
  const char* name;
  const char* path;  ///< below data/
  const char* packages;
};

class TokenizerOracleTest : public ::testing::TestWithParam<Published> {
 protected:
  void SetUp() override {
    path_ = std::string(FSDP_SOURCE_DIR) + "/data/" + GetParam().path;
    if (!std::filesystem::exists(path_)) {
      GTEST_SKIP() << path_ << " is not there: ./dev data tokenizers fetches it, SmolLM2's "
                   << "./dev data smollm2";
    }
    python_ = python_with(GetParam().packages);
    if (python_.empty()) {
      GTEST_SKIP() << "no Python with " << GetParam().packages;
    }
    tokenizer_ = tokens::load(path_);
  }

  std::vector<std::int64_t> oracle(const std::string& text_path, bool special) {
    const std::string out = directory_.path("ids");
    const CommandResult result =
        run_command({python_, std::string(FSDP_SOURCE_DIR) + "/tests/e2e/tokenizer_oracle.py",
                     path_, text_path, out, special ? "special" : "plain"});
    EXPECT_EQ(result.code, 0) << result.err;
    const std::string bytes = read_all(out);
    std::vector<std::int32_t> narrow(bytes.size() / 4);
    std::memcpy(narrow.data(), bytes.data(), 4 * narrow.size());
    return {narrow.begin(), narrow.end()};
  }

  void expect_equal(const std::string& text, bool special) {
    const auto expected = oracle(directory_.write("text", text), special);
    const auto ids = tokenizer_->encode(text, {.special_tokens = special});
    EXPECT_EQ(tokenizer_->decode(ids), text);
    const auto [ours, theirs] =
        std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end());
    if (ours == ids.end() && theirs == expected.end()) {
      return;
    }
    const std::string before = tokenizer_->decode(
        {ids.data() + std::max<std::ptrdiff_t>(0, ours - ids.begin() - 4), &*ours});
    ADD_FAILURE() << GetParam().name << ": " << ids.size() << " ids, expected " << expected.size()
                  << "; they differ from token " << ours - ids.begin() << " on, after '"
                  << tokens::printable(before) << "': "
                  << ::testing::PrintToString(
                         std::vector<std::int64_t>(ours, std::min(ours + 6, ids.end())))
                  << " and "
                  << ::testing::PrintToString(
                         std::vector<std::int64_t>(theirs, std::min(theirs + 6, expected.end())));
  }

  fsdp::test::TemporaryDirectory directory_;
  std::string path_, python_;
  std::shared_ptr<const tokens::Tokenizer> tokenizer_;
};

TEST_P(TokenizerOracleTest, TheDefaultTextHasTheSameIds) {
  expect_equal(read_all(std::string(FSDP_SOURCE_DIR) + "/data/kjv.txt"), false);
}

TEST_P(TokenizerOracleTest, HardTextHasTheSameIds) {
  expect_equal(hard_text(), false);
  expect_equal(hard_text(), true);
}

TEST_P(TokenizerOracleTest, RandomUnicodeHasTheSameIds) {
  expect_equal(random_text(100'000), false);
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerOracleTest,
    ::testing::Values(Published{"Gpt2", "tokenizers/gpt2", "tokenizers"},
                      Published{"Llama3", "tokenizers/llama3/tokenizer.json", "tokenizers"},
                      Published{"SmolLm2", "models/smollm2-135m/tokenizer.json", "tokenizers"},
                      Published{"R50k", "tokenizers/tiktoken/r50k_base.tiktoken", "tiktoken"},
                      Published{"Cl100k", "tokenizers/tiktoken/cl100k_base.tiktoken", "tiktoken"},
                      Published{"O200k", "tokenizers/tiktoken/o200k_base.tiktoken", "tiktoken"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace fsdp::test
