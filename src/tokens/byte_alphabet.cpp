// SPDX-License-Identifier: Apache-2.0
#include "tokens/byte_alphabet.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include "tokens/utf8.hpp"

namespace fsdp::tokens::detail {
namespace {

/// 256 bytes, of which 68 are not visible.
constexpr std::size_t kCharacters = 256 + 68;

struct Alphabet {
  std::array<std::string, 256> symbols;
  std::array<int, kCharacters> bytes{};  ///< by code point; -1: stands for none
};

bool is_visible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  std::uint32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const std::uint32_t character = is_visible(byte) ? static_cast<std::uint32_t>(byte) : next++;
    append_utf8(alphabet.symbols[static_cast<std::size_t>(byte)], character);
    alphabet.bytes[character] = byte;
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet kMade = make_alphabet();
  return kMade;
}

}  // namespace

const std::string& symbol_of_byte(unsigned char byte) { return alphabet().symbols[byte]; }

std::optional<std::string> bytes_of_symbols(std::string_view symbols) {
  const Alphabet& known = alphabet();
  std::string bytes;
  while (!symbols.empty()) {
    const std::size_t size = character_bytes(symbols);
    const std::uint32_t character = size == 0 ? kCharacters : code_point(symbols);
    if (character >= kCharacters || known.bytes[character] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(known.bytes[character]));
    symbols.remove_prefix(size);
  }
  return bytes;
}

}  // namespace fsdp::tokens::detail
