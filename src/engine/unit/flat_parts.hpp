// SPDX-License-Identifier: Apache-2.0
/// A unit's flat shard, or the flat gradient of that, and each parameter's part of it. Operators on
/// the parts are looked at by the touch fallback. See NOTE [operators on shards].
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/touch/touch.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// *Invariants*: handles are made once; contents change.
class FlatParts {
 public:
  /// Nothing: gradients of a unit that has never trained.
  FlatParts() = default;
  /// `flat`: [shard_numel()]. `role`: kShard, or kGradShard, whose flat tensor stays plain.
  FlatParts(const Unit& unit, const at::Tensor& flat, StorageRole role);
  /// Makes them known to the dispatcher.
  void connect(const std::weak_ptr<TouchTarget>& target, int unit);

  bool is_defined() const { return flat_.defined(); }
  const at::Tensor& flat() const { return flat_; }
  const at::Tensor& part(int parameter) const {
    return parts_[static_cast<std::size_t>(parameter)];
  }
  /// Changes with every write, also through a part.
  std::uint32_t version() const {
    return flat_.unsafeGetTensorImpl()->version_counter().current_version();
  }
  /// For writes that the dispatcher does not see.
  void bump_version() const { flat_.unsafeGetTensorImpl()->bump_version(); }
  /// Whether any part has a gradient.
  bool has_grad() const;

 private:
  StorageRole role_ = StorageRole::kShard;
  at::Tensor flat_;
  std::vector<at::Tensor> parts_;  ///< by parameter, 1-D
  std::optional<Registration> registration_;
};

}  // namespace fsdp::engine
