// SPDX-License-Identifier: Apache-2.0
/// Names with `*` for any text, as in Options::ignore.
#pragma once

#include <string_view>

namespace fsdp::base {

/// Whether `name` is `pattern`, where each `*` stands for any text, also none.
constexpr bool matches(std::string_view pattern, std::string_view name) {
  // On a mismatch the last star takes one character more.
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

}  // namespace fsdp::base
