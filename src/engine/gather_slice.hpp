// SPDX-License-Identifier: Apache-2.0
/// What a rank brings to a unit's gathers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "engine/unit.hpp"

namespace fsdp::engine {

/// The unit's shard, or, where operators take another type, a copy of it in that type. The copy is
/// made anew when the shard has changed, be it by a step, a load or an edit, and only then.
class GatherSlice {
 public:
  /// `copy` is [shard_numel] of the unit's param_dtype, undefined for a unit that is not cast.
  explicit GatherSlice(at::Tensor copy = {}) : copy_(std::move(copy)) {}

  /// Brings the copy up to date; returns whether there was something to do.
  bool renew(const Unit& unit) {
    if (!unit.is_cast() || version_ == unit.shard_version()) {
      return false;
    }
    copy_.copy_(unit.flat_shard);
    version_ = unit.shard_version();
    return true;
  }
  const at::Tensor& values(const Unit& unit) const {
    return unit.is_cast() ? copy_ : unit.flat_shard;
  }

 private:
  at::Tensor copy_;
  std::optional<std::uint32_t> version_;  ///< of the shard, when it was copied
};

}  // namespace fsdp::engine
