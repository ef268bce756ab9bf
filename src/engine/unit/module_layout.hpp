// SPDX-License-Identifier: Apache-2.0
/// A module as it is laid out over the ranks: what Setup makes of it, constant from then on.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/unit/bundle.hpp"
#include "engine/unit/unit.hpp"
#include "schedule/schedule.hpp"

namespace fsdp::engine {

struct ModuleLayout {
  std::vector<Unit> units;
  Bundles bundles;
  schedule::Config schedule;  ///< how many slots and buffers there are, and whose
  bool is_aliased = false;    ///< weights lie in memory that ranks share

  int count() const { return static_cast<int>(units.size()); }
  const Unit& at(int unit) const { return units[static_cast<std::size_t>(unit)]; }
  std::span<const int> members(int bundle) const { return bundles.members(bundle); }
  bool is_offloaded() const { return units.front().is_offloaded(); }
  c10::Device device() const { return units.front().device; }

  /// A parameter by its unit and its index in that.
  struct Index {
    int unit = 0;
    int parameter = 0;
  };
  /// All of them, in the module's order.
  std::vector<Index> ordered_parameters() const {
    std::vector<Index> ordered;
    for (int unit = 0; unit < count(); ++unit) {
      for (int parameter = 0; parameter < std::ssize(at(unit).parameters); ++parameter) {
        const auto order = static_cast<std::size_t>(at(unit).at(parameter).order);
        ordered.resize(std::max(ordered.size(), order + 1));
        ordered[order] = {.unit = unit, .parameter = parameter};
      }
    }
    return ordered;
  }
};

}  // namespace fsdp::engine
