// SPDX-License-Identifier: Apache-2.0
/// The module's buffers, which every rank holds whole.
#pragma once

#include <utility>
#include <vector>

#include "engine/unit/precision.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/engine/shards.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class ModuleBuffers {
 public:
  /// `is_low`: which of them cast() casts.
  ModuleBuffers(std::vector<NamedBuffer> saved, std::vector<bool> is_low)
      : saved_(std::move(saved)), is_low_(std::move(is_low)) {}

  /// Rank 0's go to all ranks. @collective all ranks
  void broadcast(comm::Transport& transport) const;
  /// From here on the module computes with these in `dtype`, and what is saved stays.
  void cast(at::ScalarType dtype);
  /// Brings the module's and the saved ones to one state, whichever was written.
  void sync();
  /// What is saved of them.
  const std::vector<NamedBuffer>& saved() const { return saved_; }

 private:
  std::vector<NamedBuffer> saved_;
  std::vector<bool> is_low_;
  std::vector<CastBuffer> casts_;
};

}  // namespace fsdp::engine
