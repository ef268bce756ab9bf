// SPDX-License-Identifier: Apache-2.0
#include "tokens/utf8.hpp"

#include <cstdio>
#include <cstring>

#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::tokens {
namespace detail {
namespace {

unsigned char byte(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

bool continues(std::string_view text, std::size_t at) {
  return at < text.size() && (byte(text, at) & 0xc0) == 0x80;
}

/// Whether the second byte may follow the first: what rules out overlong forms, surrogates and
/// code points that do not exist (Unicode, table 3-7).
bool second_byte_fits(unsigned char first, unsigned char second) {
  switch (first) {
    case 0xe0: return second >= 0xa0;
    case 0xed: return second < 0xa0;
    case 0xf0: return second >= 0x90;
    case 0xf4: return second < 0x90;
    default: return true;
  }
}

std::size_t bytes_announced(unsigned char first) {
  if (first < 0x80) {
    return 1;
  }
  if (first < 0xc2 || first > 0xf4) {
    return 0;
  }
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

}  // namespace

std::size_t character_bytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const std::size_t bytes = bytes_announced(byte(text, 0));
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!continues(text, i)) {
      return 0;
    }
  }
  return bytes < 2 || second_byte_fits(byte(text, 0), byte(text, 1)) ? bytes : 0;
}

std::size_t valid_bytes(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  while (at < text.size()) {
    // Most text is ASCII: eight bytes at a time.
    std::uint64_t word = kHighBits;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
    }
    if ((word & kHighBits) == 0) {
      at += sizeof word;
      continue;
    }
    const std::size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) {
      break;
    }
    at += bytes;
  }
  return at;
}

std::uint32_t code_point(std::string_view text) {
  const std::size_t bytes = character_bytes(text);
  if (bytes < 2) {
    return byte(text, 0);
  }
  std::uint32_t value = byte(text, 0) & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    value = value << 6 | (byte(text, i) & 0x3fu);
  }
  return value;
}

void append_utf8(std::string& text, std::uint32_t code_point) {
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
    return;
  }
  constexpr std::uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  const int more = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  text.push_back(static_cast<char>(kLead[more] | code_point >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) {
    text.push_back(static_cast<char>(0x80u | (code_point >> (6 * i) & 0x3fu)));
  }
}

}  // namespace detail

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t bytes = detail::character_bytes(text);
    const auto first = static_cast<unsigned char>(text.front());
    const bool is_c1_control = bytes == 2 && detail::code_point(text) < 0xa0;
    const bool is_control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
    if (bytes == 0 || is_control || is_c1_control) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", first);
      shown += escaped;
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return shown;
}

}  // namespace fsdp::tokens
