// SPDX-License-Identifier: Apache-2.0
/// Words of messages that several modules need.
#pragma once

#include <concepts>
#include <ranges>
#include <string>
#include <string_view>

namespace fsdp::base {

/// Adds to a list as messages show it: "1, 3".
inline void append_to_list(std::string& list, std::string_view item) {
  list += list.empty() ? "" : ", ";
  list += item;
}
inline void append_to_list(std::string& list, std::integral auto number) {
  append_to_list(list, std::to_string(number));
}

/// "1, 3" of a range of numbers or texts; empty of none.
template <std::ranges::input_range Items>
std::string list_text(const Items& items) {
  std::string list;
  for (const auto& item : items) {
    append_to_list(list, item);
  }
  return list;
}

/// Text from outside as a terminal may show it: what would move the cursor, colour or ring is
/// "\x1b". Lines stay lines.
inline std::string shown(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    // From 0x80 on there are controls once more; in UTF-8 they have two bytes.
    const bool is_second_control = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || is_second_control) {
      const unsigned char code = is_second_control ? next : byte;
      result += std::string("\\x") + kDigits[code >> 4] + kDigits[code & 15];
      i += is_second_control ? 1 : 0;
    } else {
      result += text[i];
    }
  }
  return result;
}

/// Messages of LibTorch and Gloo carry a stack from the second line on.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace fsdp::base
