// SPDX-License-Identifier: Apache-2.0
/// Which parameters have a gradient. A rank that did not use a parameter cannot know whether others
/// did, and an optimizer must treat all shards of a tensor alike: so ranks tell each other, one bit
/// a parameter, once a backward.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/unit/unit.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::engine {

/// *Thread safety*: none. *Invariants*: allocates nothing after construction.
class Presence {
 public:
  Presence(comm::Communicator& world, const std::vector<Unit>& units);

  /// Sets Parameter::is_present of all units to whether it is set on any rank, and compares the
  /// divisor. When it returns, every rank has ended this backward.
  /// @collective all ranks @blocks @throws Error kMismatch, on all ranks, for unequal divisors
  void agree(std::vector<Unit>& units, double divisor);

 private:
  comm::Communicator& world_;
  std::vector<std::int64_t> own_;  ///< the divisor's bits, then one bit a parameter
  std::vector<std::int64_t> all_;  ///< of each rank
};

}  // namespace fsdp::engine
