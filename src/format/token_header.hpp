// SPDX-License-Identifier: Apache-2.0
/// The header of llm.c's token files, see token_file.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::format::detail {

constexpr std::int64_t kTokenHeaderBytes = 1024;

/// llm.c's two kinds.
struct TokenKind {
  std::int32_t magic, version;
  std::int64_t token_bytes;
};
constexpr TokenKind kTokenKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

struct TokenHeader {
  const TokenKind* kind = nullptr;  ///< null: the bytes begin with neither magic number
  std::int32_t version = 0;
  std::int64_t tokens = 0;
  std::int64_t vocab = 0;
  std::uint64_t fingerprint = 0;
  std::string tokenizer;
};

/// Reads what there is of a header; `bytes` may be shorter than one.
TokenHeader parse_token_header(std::string_view bytes);

/// kTokenHeaderBytes bytes. A name that is too long is cut.
std::string write_token_header(const TokenHeader& header);

}  // namespace fsdp::format::detail
