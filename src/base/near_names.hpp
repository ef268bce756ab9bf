// SPDX-License-Identifier: Apache-2.0
/// What somebody may have meant who wrote a name that is not there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::base {

/// Characters to change, insert, remove or swap with their neighbour. Damerau, "A technique for
/// computer detection and correction of spelling errors" (1964).
inline std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(last, row);
  }
  return last.back();
}

/// At most `count` of `known`, the nearest first, those that are equally near in their own order.
inline std::vector<std::string> near_names(std::string_view name,
                                           const std::vector<std::string>& known,
                                           std::size_t count = 3) {
  std::vector<std::pair<std::size_t, std::size_t>> order;  // distance and place
  for (std::size_t i = 0; i < known.size(); ++i) {
    order.emplace_back(distance(name, known[i]), i);
  }
  std::ranges::sort(order);
  std::vector<std::string> near;
  for (std::size_t i = 0; i < std::min(count, order.size()); ++i) {
    near.push_back(known[order[i].second]);
  }
  return near;
}

/// `"h.0", "h.1"` of the nearest.
inline std::string near_names_text(std::string_view name, const std::vector<std::string>& known,
                                   std::size_t count = 3) {
  std::string text;
  for (const std::string& near : near_names(name, known, count)) {
    text += (text.empty() ? "\"" : ", \"") + near + "\"";
  }
  return text;
}

}  // namespace fsdp::base
