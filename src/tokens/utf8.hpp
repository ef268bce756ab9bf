// SPDX-License-Identifier: Apache-2.0
/// UTF-8 as Unicode's chapter 3.9 defines it: no overlong forms, no surrogates, nothing above
/// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::tokens::detail {

/// Bytes of the character that `text` begins with, 0 when it begins with none.
std::size_t character_bytes(std::string_view text);

/// Bytes at the begin of `text` that are whole characters.
std::size_t valid_bytes(std::string_view text);

/// The code point of the valid character that `text` begins with.
std::uint32_t code_point(std::string_view text);

/// Appends a code point as UTF-8.
void append_utf8(std::string& text, std::uint32_t code_point);

}  // namespace fsdp::tokens::detail
