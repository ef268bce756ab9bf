// SPDX-License-Identifier: Apache-2.0
/// Tokenizers of every kind that is read here, trained by Hugging Face's tokenizers when the test
/// runs, give the ids and texts that they give there. See tokenizer_oracle_test.cpp for published
/// ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

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

std::vector<std::int64_t> read_ids(const std::string& path) {
  const std::string bytes = read_all(path);
  std::vector<std::int32_t> narrow(bytes.size() / 4);
  std::memcpy(narrow.data(), bytes.data(), 4 * narrow.size());
  return {narrow.begin(), narrow.end()};
}

class TrainedTokenizerTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    const std::string python = python_with("tokenizers");
    if (python.empty()) {
      return;
    }
    made_ = std::make_unique<TemporaryDirectory>();
    const std::string bible = read_all(std::string(FSDP_SOURCE_DIR) + "/data/kjv.txt");
    texts() = {bible.substr(0, 400'000),
               hard_text() + "<s>x</s>  <s> y <unk>cafe\u0301 e\u0301e\u0301 caf\u00e9</s>",
               random_text(100'000),
               " one",
               "<s>after",
               "\u2581\u2581marks \u2581 and <0x0A>\n",
               ""};
    std::vector<std::string> command = {
        python, std::string(FSDP_SOURCE_DIR) + "/tests/e2e/trained_tokenizers.py", made_->path()};
    for (std::size_t i = 0; i < texts().size(); ++i) {
      command.push_back(made_->write("text" + std::to_string(i), texts()[i]));
    }
    const CommandResult result = run_command(command);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { made_.reset(); }
  void SetUp() override {
    if (made_ == nullptr) {
      GTEST_SKIP() << "no Python with tokenizers";
    }
  }
  static std::vector<std::string>& texts() {
    static std::vector<std::string> all;
    return all;
  }

  static std::unique_ptr<TemporaryDirectory> made_;
};
std::unique_ptr<TemporaryDirectory> TrainedTokenizerTest::made_;

TEST_P(TrainedTokenizerTest, HasTheSameIdsAndTexts) {
  const std::string directory = made_->path(GetParam());
  const auto tokenizer = tokens::load(directory);
  for (std::size_t i = 0; i < texts().size(); ++i) {
    for (const char* kind : {"plain", "special"}) {
      SCOPED_TRACE(std::string(kind) + " text " + std::to_string(i));
      const auto ids =
          tokenizer->encode(texts()[i], {.special_tokens = std::string(kind) == "special"});
      const std::string name = directory + "/" + std::to_string(i) + ".";
      const auto expected = read_ids(name + kind);
      const auto differ = std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end());
      ASSERT_TRUE(ids == expected)
          << ids.size() << " ids, expected " << expected.size() << "; they differ after '"
          << tokens::printable(tokenizer->decode(
                 {ids.data() + std::max<std::ptrdiff_t>(0, differ.first - ids.begin() - 4),
                  ids.data() + (differ.first - ids.begin())}))
          << "'";
      if (std::string(kind) == "special") {
        const std::string text = read_all(name + "text");
        // There, added tokens that are no ASCII lose their bytes.
        const bool is_whole = text.find("\ufffd") == std::string::npos;
        EXPECT_TRUE(!is_whole || tokenizer->decode(ids) == text) << text.substr(0, 100);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainedTokenizerTest,
                         ::testing::Values("llama2", "gemma", "nfc", "qwen", "always-whole",
                                           "always-split", "first-whole", "first-split",
                                           "never-whole", "never-split"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fsdp::test
