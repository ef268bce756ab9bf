// SPDX-License-Identifier: Apache-2.0
/// Published tokenizers give the ids that the reference implementations give: Hugging Face's
/// tokenizers and OpenAI's tiktoken. Needs `./dev data tokenizers`, and for SmolLM2's
/// `./dev data smollm2`; skipped without.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/hard_text.hpp"
#include "e2e/program.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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
    const std::string meant = read_all(directory_.path("ids.text"));
    EXPECT_TRUE(tokenizer_->decode(ids) == meant) << "decoded otherwise";
    if (!normalizes()) {
      EXPECT_TRUE(meant == text) << "decoding gives another text";
    }
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

  /// Qwen's puts a text into its composed form first.
  static bool normalizes() { return std::string_view(GetParam().name) == "Qwen3"; }

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
                      Published{"Llama2", "tokenizers/llama2/tokenizer.json", "tokenizers"},
                      Published{"Qwen3", "tokenizers/qwen3/tokenizer.json", "tokenizers"},
                      Published{"SmolLm2", "models/smollm2-135m/tokenizer.json", "tokenizers"},
                      Published{"R50k", "tokenizers/tiktoken/r50k_base.tiktoken", "tiktoken"},
                      Published{"Cl100k", "tokenizers/tiktoken/cl100k_base.tiktoken", "tiktoken"},
                      Published{"O200k", "tokenizers/tiktoken/o200k_base.tiktoken", "tiktoken"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace fsdp::test
