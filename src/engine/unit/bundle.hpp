// SPDX-License-Identifier: Apache-2.0
/// Units of one module that go together. A flat buffer has one dtype, and frozen parameters have no
/// gradients to reduce, so the parameters of a module that was chosen as a unit may make several
/// Units: one a dtype, and the frozen ones apart. They are one to the schedule, a *bundle*: it
/// gathers, frees and reduces them together, since operators of one module take them in turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// *Invariants*: every unit is in one bundle; members are ascending. *Thread safety*: immutable.
class Bundles {
 public:
  Bundles() = default;
  /// By Unit::bundle, which counts from 0 without a gap.
  explicit Bundles(const std::vector<Unit>& units) {
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const auto bundle = static_cast<std::size_t>(units[unit].bundle);
      members_.resize(std::max(members_.size(), bundle + 1));
      members_[bundle].push_back(static_cast<int>(unit));
    }
  }

  int count() const { return static_cast<int>(members_.size()); }
  std::span<const int> members(int bundle) const {
    return members_[static_cast<std::size_t>(bundle)];
  }

 private:
  std::vector<std::vector<int>> members_;
};

/// Where the units of each bundle lie in a buffer that holds one bundle at a time.
struct Places {
  std::vector<std::int64_t> offset;  ///< in bytes, by unit
  std::vector<std::int64_t> bytes;   ///< by bundle

  /// The largest bundle for which `counts` holds; 0 without one.
  template <class Counts>
  std::int64_t largest(Counts counts) const {
    std::int64_t largest = 0;
    for (std::size_t bundle = 0; bundle < bytes.size(); ++bundle) {
      if (counts(static_cast<int>(bundle))) {
        largest = std::max(largest, bytes[bundle]);
      }
    }
    return largest;
  }
};

/// One unit after the other, each at a multiple of 128 bytes; `bytes_of(unit, index)` may be 0.
template <class BytesOf>
Places place(const std::vector<Unit>& units, const Bundles& bundles, BytesOf bytes_of) {
  constexpr std::int64_t kAlignment = 128;
  Places places;
  places.offset.resize(units.size());
  for (int bundle = 0; bundle < bundles.count(); ++bundle) {
    std::int64_t end = 0;
    for (int unit : bundles.members(bundle)) {
      const auto index = static_cast<std::size_t>(unit);
      const std::int64_t bytes = bytes_of(units[index], index);
      if (bytes > 0) {
        places.offset[index] = (end + kAlignment - 1) / kAlignment * kAlignment;
        end = places.offset[index] + bytes;
      }
    }
    places.bytes.push_back(end);
  }
  return places;
}

}  // namespace fsdp::engine
