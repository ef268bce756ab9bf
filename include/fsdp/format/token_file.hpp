// SPDX-License-Identifier: Apache-2.0
/// Token files with the ending `.bin`: plain little-endian uint16 as nanoGPT writes them, and
/// llm.c's, which begin with 256 int32 (magic 20240520, version 1, number of tokens). Told apart by
/// the magic number.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::format {

enum class TokenFileKind {
  kPlain,  ///< uint16 tokens from the first byte on
  kLlmC,   ///< 1,024 bytes of header, then uint16 tokens
};

/// Where the tokens of a file lie.
struct TokenFileInfo {
  TokenFileKind kind = TokenFileKind::kPlain;
  std::int64_t data_offset = 0;  ///< position of the first token
  std::int64_t tokens = 0;
};

/// Looks at the size and the first bytes of a token file.
/// @throws Error kNotFound or kIo when it cannot be read; kCorrupt for an odd number of bytes, for
/// a count in llm.c's header that the file does not hold; kUnsupported for another version of it
TokenFileInfo inspect_token_file(const std::string& path);

}  // namespace fsdp::format
