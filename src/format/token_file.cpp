// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/token_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "fsdp/base/error.hpp"

namespace fsdp::format {
namespace {

constexpr std::int32_t kMagic = 20240520;
constexpr std::int32_t kVersion = 1;
constexpr std::int64_t kHeaderBytes = 1024;

std::int32_t little_endian(const unsigned char* bytes) {
  return static_cast<std::int32_t>(
      static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
      static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24);
}

}  // namespace

TokenFileInfo inspect_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  FSDP_CHECK(file, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  const auto bytes = static_cast<std::int64_t>(file.tellg());
  std::array<unsigned char, 12> head{};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(head.data()),
            std::min<std::streamsize>(bytes, static_cast<std::streamsize>(head.size())));
  FSDP_CHECK(file.good(), ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));

  if (bytes < 4 || little_endian(head.data()) != kMagic) {
    FSDP_CHECK(bytes % 2 == 0, ErrorCode::kCorrupt, "'", path, "' has ", bytes,
               " bytes, an odd number: not a file of uint16 tokens");
    return {.kind = TokenFileKind::kPlain, .data_offset = 0, .tokens = bytes / 2};
  }
  FSDP_CHECK(bytes >= kHeaderBytes, ErrorCode::kCorrupt, "'", path,
             "' begins as an llm.c token file but has ", bytes, " bytes; its header takes ",
             kHeaderBytes);
  const std::int32_t version = little_endian(head.data() + 4);
  FSDP_CHECK(version == kVersion, ErrorCode::kUnsupported, "'", path,
             "' is an llm.c token file of version ", version, "; version ", kVersion,
             " (uint16 tokens) is supported");
  const std::int64_t tokens = little_endian(head.data() + 8);
  FSDP_CHECK(tokens >= 0 && bytes == kHeaderBytes + 2 * tokens, ErrorCode::kCorrupt, "'", path,
             "' claims ", tokens, " tokens, ", kHeaderBytes + 2 * tokens, " bytes, but has ", bytes,
             " bytes");
  return {.kind = TokenFileKind::kLlmC, .data_offset = kHeaderBytes, .tokens = tokens};
}

}  // namespace fsdp::format
