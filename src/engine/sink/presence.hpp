// SPDX-License-Identifier: Apache-2.0
/// Which parameters have a gradient. A rank that did not use a parameter cannot know whether others
/// did, and an optimizer must treat all shards of a tensor alike: so ranks tell each other, one bit
/// per parameter, once per backward.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/unit/unit.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::engine {

/// *Thread safety*: none. *Invariants*: allocates nothing after construction.
class Presence {
 public:
  Presence(comm::Job& world, const std::vector<Unit>& units);

  /// This rank has a gradient for the step, wherever it waits.
  void set(int unit, int parameter) { word(unit, parameter) |= mask(unit, parameter); }
  void forget(int unit, int parameter) { word(unit, parameter) &= ~mask(unit, parameter); }
  void forget_all();
  bool has(int unit, int parameter) const {
    return (own_[1 + bit(unit, parameter) / kBits] & mask(unit, parameter)) != 0;
  }

  /// Sets the bits that are set on any rank, and compares the divisor. When it returns, every rank
  /// has ended this backward.
  /// @collective all ranks @blocks @throws Error kMismatch, on all ranks, for unequal divisors
  void agree(double divisor);

 private:
  static constexpr std::size_t kBits = 64;

  std::size_t bit(int unit, int parameter) const {
    return first_bit_[static_cast<std::size_t>(unit)] + static_cast<std::size_t>(parameter);
  }
  std::uint64_t& word(int unit, int parameter) { return own_[1 + bit(unit, parameter) / kBits]; }
  std::uint64_t mask(int unit, int parameter) const {
    return std::uint64_t{1} << (bit(unit, parameter) % kBits);
  }

  comm::Job& world_;
  std::vector<std::size_t> first_bit_;  ///< by unit
  std::vector<std::uint64_t> own_;      ///< the divisor's bits, then one bit per parameter
  std::vector<std::uint64_t> all_;      ///< of each rank
};

}  // namespace fsdp::engine
