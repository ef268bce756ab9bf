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

/// How many characters must be inserted, removed or replaced to turn one into the other.
inline std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[to.size()];
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
