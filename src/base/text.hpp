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

/// Messages of LibTorch and Gloo carry a stack from the second line on.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace fsdp::base
