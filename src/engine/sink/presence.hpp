// SPDX-License-Identifier: Apache-2.0
/// Which parameters have a gradient. A rank that did not use a parameter cannot know whether others
/// did, and an optimizer must treat all shards of a tensor alike: so ranks tell each other, one bit
/// per parameter, once per backward. With the bits go a hash of what else must be alike for that:
/// the hyper-parameters that each rank's optimizers have.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/unit/unit.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/shard_access.hpp"

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
    return (own_[kHead + bit(unit, parameter) / kBits] & mask(unit, parameter)) != 0;
  }

  /// See ShardAccess::compare().
  std::uint64_t compare(HyperParameters of);
  void stop_comparing(std::uint64_t id) noexcept { compared_.erase(id); }

  /// Sets the bits that are set on any rank, and compares divisor and hyper-parameters. When it
  /// returns, every rank has ended this backward.
  /// @collective all ranks @blocks @throws Error kMismatch, on all ranks, for unequal ones
  void agree(double divisor);

 private:
  static constexpr std::size_t kBits = 64;
  static constexpr std::size_t kDivisor = 0, kHyperParameters = 1, kHead = 2;

  std::size_t bit(int unit, int parameter) const {
    return first_bit_[static_cast<std::size_t>(unit)] + static_cast<std::size_t>(parameter);
  }
  std::uint64_t& word(int unit, int parameter) {
    return own_[kHead + bit(unit, parameter) / kBits];
  }
  std::uint64_t mask(int unit, int parameter) const {
    return std::uint64_t{1} << (bit(unit, parameter) % kBits);
  }

  std::uint64_t hash_of_hyper_parameters() const;
  [[noreturn]] void refuse_hyper_parameters();

  comm::Job& world_;
  std::vector<std::size_t> first_bit_;  ///< by unit
  std::vector<std::uint64_t> own_;      ///< the divisor's bits, a hash, then one bit per parameter
  std::vector<std::uint64_t> all_;      ///< of each rank
  std::map<std::uint64_t, HyperParameters> compared_;  ///< by id, which counts
  std::uint64_t last_compared_ = 0;
};

}  // namespace fsdp::engine
