// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/token_file.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <vector>

#include "fsdp/base/error.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::format {
namespace {

using ::testing::HasSubstr;

std::string int32_bytes(std::int32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) {
    bytes.push_back(static_cast<char>((value >> shift) & 0xff));
  }
  return bytes;
}

std::string llm_c_file(std::int32_t version, std::int32_t count, std::size_t token_bytes,
                       std::int32_t magic = 20240520) {
  std::string bytes = int32_bytes(magic) + int32_bytes(version) + int32_bytes(count);
  bytes.resize(1024, '\0');
  return bytes + std::string(token_bytes, '\1');
}

class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileInfo inspect(const std::string& bytes) {
    return inspect_token_file(directory_.write("train.bin", bytes));
  }
  std::string refusal(const std::string& bytes) {
    try {
      inspect(bytes);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(TokenFileTest, PlainTokensBeginAtTheFirstByte) {
  const auto info = inspect(std::string(2048, '\7'));
  EXPECT_EQ(info.kind, TokenFileKind::kPlain);
  EXPECT_EQ(info.data_offset, 0);
  EXPECT_EQ(info.tokens, 1024);
  EXPECT_EQ(inspect("").tokens, 0);
  EXPECT_EQ(inspect("ab").tokens, 1);
}

TEST_F(TokenFileTest, LlmCTokensBeginAfterTheHeader) {
  const auto info = inspect(llm_c_file(1, 5, 10));
  EXPECT_EQ(info.kind, TokenFileKind::kLlmC);
  EXPECT_EQ(info.data_offset, 1024);
  EXPECT_EQ(info.tokens, 5);
}

TEST_F(TokenFileTest, BrokenFilesAreRefusedWithTheirNumbers) {
  EXPECT_THAT(refusal("abc"), HasSubstr("has 3 bytes, an odd number"));
  EXPECT_THAT(refusal(llm_c_file(2, 5, 10)), HasSubstr("version 2"));
  EXPECT_THAT(refusal(llm_c_file(1, 6, 10)),
              HasSubstr("claims 6 tokens, 1036 bytes, but has 1034"));
  EXPECT_THAT(refusal(llm_c_file(1, 4, 10)), HasSubstr("claims 4 tokens"));
  EXPECT_THAT(refusal(llm_c_file(1, -1, 0)), HasSubstr("claims -1 tokens"));
  EXPECT_THAT(refusal(llm_c_file(1, 0, 0).substr(0, 100)), HasSubstr("has 100 bytes"));
}

TEST_F(TokenFileTest, TokensOfFourBytesHaveAMagicNumberOfTheirOwn) {
  const auto info = inspect(llm_c_file(7, 5, 20, 20240801));
  EXPECT_EQ(info.token_bytes, 4);
  EXPECT_EQ(info.tokens, 5);
  EXPECT_EQ(info.origin, TokenOrigin{});
  EXPECT_THAT(refusal(llm_c_file(1, 5, 20, 20240801)), HasSubstr("version 7 (uint32 tokens)"));
  EXPECT_THAT(refusal(llm_c_file(7, 5, 10, 20240801)),
              HasSubstr("claims 5 tokens, 1044 bytes, but has 1034"));
}

TEST_F(TokenFileTest, WhatIsWrittenSaysWhereItComesFrom) {
  for (const std::int64_t vocab : {65536, 65537}) {
    SCOPED_TRACE(vocab);
    const std::string path = directory_.path("out.bin");
    const TokenOrigin origin{.vocab = vocab, .fingerprint = 0x0123456789abcdef, .tokenizer = "gpt"};
    {
      TokenFileWriter writer(path, origin);
      writer.append(std::vector<std::int64_t>{1, 2});
      writer.append(std::vector<std::int64_t>(700'000, vocab - 1));
      EXPECT_EQ(writer.tokens(), 700'002);
      EXPECT_FALSE(std::filesystem::exists(path));
      writer.finish();
    }
    const auto info = inspect_token_file(path);
    EXPECT_EQ(info.tokens, 700'002);
    EXPECT_EQ(info.token_bytes, vocab == 65536 ? 2 : 4);
    EXPECT_EQ(info.origin, origin);
    std::filesystem::remove(path);
  }
}

TEST_F(TokenFileTest, AFileThatIsNotFinishedLeavesNothing) {
  const std::string path = directory_.path("out.bin");
  try {
    TokenFileWriter writer(path, {.vocab = 10});
    writer.append(std::vector<std::int64_t>{1, 10});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("token 10 is outside the vocabulary of 10"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  const std::string long_name(1000, 'n');
  TokenFileWriter writer(path, {.vocab = 10, .tokenizer = long_name});
  writer.finish();
  EXPECT_EQ(inspect_token_file(path).origin.tokenizer, long_name.substr(0, 255));
  EXPECT_THROW(TokenFileWriter("/nowhere/out.bin", {.vocab = 10}), Error);
}

TEST_F(TokenFileTest, AMissingFileIsNamed) {
  try {
    inspect_token_file("/nowhere/x.bin");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.text(), HasSubstr("/nowhere/x.bin"));
  }
}

}  // namespace
}  // namespace fsdp::format
