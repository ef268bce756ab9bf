// SPDX-License-Identifier: Apache-2.0
#include "format/token_header.hpp"

#include <algorithm>

namespace fsdp::format::detail {
namespace {

constexpr std::size_t kVersionAt = 4, kTokensAt = 8, kVocabAt = 12, kFingerprintAt = 16;
constexpr std::size_t kNameAt = 24, kNameBytes = 256;

std::uint64_t little_endian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count && at + i < bytes.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

std::int32_t int32(std::string_view bytes, std::size_t at) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(little_endian(bytes, at, 4)));
}

void put(std::string& bytes, std::size_t at, std::size_t count, std::uint64_t value) {
  for (std::size_t i = 0; i < count; ++i) {
    bytes[at + i] = static_cast<char>(value >> (8 * i) & 0xff);
  }
}

}  // namespace

TokenHeader parse_token_header(std::string_view bytes) {
  TokenHeader header;
  for (const TokenKind& kind : kTokenKinds) {
    if (bytes.size() >= 4 && int32(bytes, 0) == kind.magic) {
      header.kind = &kind;
    }
  }
  if (header.kind == nullptr) {
    return header;
  }
  header.version = int32(bytes, kVersionAt);
  header.tokens = int32(bytes, kTokensAt);
  header.vocab = int32(bytes, kVocabAt);
  header.fingerprint = little_endian(bytes, kFingerprintAt, 8);
  if (bytes.size() > kNameAt) {
    const std::string_view name = bytes.substr(kNameAt, kNameBytes);
    header.tokenizer = name.substr(0, name.find('\0'));
  }
  return header;
}

std::string write_token_header(const TokenHeader& header) {
  std::string bytes(kTokenHeaderBytes, '\0');
  put(bytes, 0, 4, static_cast<std::uint32_t>(header.kind->magic));
  put(bytes, kVersionAt, 4, static_cast<std::uint32_t>(header.kind->version));
  put(bytes, kTokensAt, 4, static_cast<std::uint64_t>(header.tokens));
  put(bytes, kVocabAt, 4, static_cast<std::uint64_t>(header.vocab));
  put(bytes, kFingerprintAt, 8, header.fingerprint);
  const std::string_view name = std::string_view(header.tokenizer).substr(0, kNameBytes - 1);
  std::copy(name.begin(), name.end(), bytes.begin() + kNameAt);
  return bytes;
}

}  // namespace fsdp::format::detail
