// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/token_file.hpp"

#include <gmock/gmock.h>

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

std::string llm_c_file(std::int32_t version, std::int32_t count, std::size_t token_bytes) {
  std::string bytes = int32_bytes(20240520) + int32_bytes(version) + int32_bytes(count);
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
