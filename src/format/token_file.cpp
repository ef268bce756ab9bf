// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/token_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/regular_file.hpp"
#include "format/token_header.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format {

using detail::kTokenHeaderBytes;
using detail::TokenHeader;

TokenFileInfo inspect_token_file(const std::string& path) {
  base::need_regular(path);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  FSDP_CHECK(file, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  const auto bytes = static_cast<std::int64_t>(file.tellg());
  std::string head(static_cast<std::size_t>(std::min(bytes, kTokenHeaderBytes)), '\0');
  file.seekg(0);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  FSDP_CHECK(file.good(), ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));

  const TokenHeader header = detail::parse_token_header(head);
  if (header.kind == nullptr) {
    FSDP_CHECK(bytes % 2 == 0, ErrorCode::kCorrupt, "'", path, "' has ", bytes,
               " bytes, an odd number: not a file of uint16 tokens");
    return {.kind = TokenFileKind::kPlain, .data_offset = 0, .tokens = bytes / 2};
  }
  FSDP_CHECK(bytes >= kTokenHeaderBytes, ErrorCode::kCorrupt, "'", path,
             "' begins as an llm.c token file but has ", bytes, " bytes; its header takes ",
             kTokenHeaderBytes);
  const std::int64_t token_bytes = header.kind->token_bytes;
  FSDP_CHECK(header.version == header.kind->version, ErrorCode::kUnsupported, "'", path,
             "' is an llm.c token file of version ", header.version, "; version ",
             header.kind->version, " (uint", 8 * token_bytes, " tokens) is supported");
  const std::int64_t expected = kTokenHeaderBytes + token_bytes * header.tokens;
  FSDP_CHECK(header.tokens >= 0 && bytes == expected, ErrorCode::kCorrupt, "'", path, "' claims ",
             header.tokens, " tokens, ", expected, " bytes, but has ", bytes, " bytes");
  FSDP_CHECK(header.vocab >= 0, ErrorCode::kCorrupt, "'", path, "' claims a vocabulary of ",
             header.vocab, " tokens");
  return {
      .kind = TokenFileKind::kLlmC,
      .data_offset = kTokenHeaderBytes,
      .tokens = header.tokens,
      .token_bytes = token_bytes,
      .origin = {
          .vocab = header.vocab, .fingerprint = header.fingerprint, .tokenizer = header.tokenizer}};
}

}  // namespace fsdp::format
