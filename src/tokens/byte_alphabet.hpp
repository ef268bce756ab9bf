// SPDX-License-Identifier: Apache-2.0
/// How byte-level vocabularies write bytes as visible characters (GPT-2's encoder.py,
/// bytes_to_unicode): a visible Latin-1 byte is itself, the others are U+0100 and on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::tokens::detail {

/// The character that stands for a byte, as UTF-8.
const std::string& symbol_of_byte(unsigned char byte);

/// The bytes that a token's characters stand for; nothing when one of them stands for none.
std::optional<std::string> bytes_of_symbols(std::string_view symbols);

}  // namespace fsdp::tokens::detail
