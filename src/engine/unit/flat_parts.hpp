// SPDX-License-Identifier: Apache-2.0
/// A unit's flat shard, or the flat gradient of that, and each parameter's part of it. Operators on
/// the parts are looked at by the touch fallback. See NOTE [operators on shards].
///
/// NOTE [Handles that stray]
/// set_data() and set_() give a handle other memory. What its owner writes there, an optimizer say,
/// no gather would ever see. So wherever the flat memory is about to be read or added to, handles
/// that have strayed come back: their values go into the flat memory and they show it again. That
/// is what a program means that swaps weights, for as long as nobody looks at the flat memory by
/// another tensor, such as a data() that is kept to be swapped back: it would change under its
/// owner. Then there is an error instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/touch/touch.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// *Invariants*: handles are made once; contents change. *Thread safety*: under the engine's lock.
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

  /// Whether a handle shows other memory than it was made for. `unit`: here and below, theirs.
  bool has_strayed(const Unit& unit) const;
  /// Handles that have strayed come back, with their values. See NOTE [Handles that stray].
  /// @throws Error kInvalidArgument for values of another shape, type or device, and where another
  /// tensor shows the memory of a shard
  void bring_home(const Unit& unit) const;

 private:
  bool is_home(const Unit& unit, std::size_t part) const;

  StorageRole role_ = StorageRole::kShard;
  at::Tensor memory_;  ///< plain, and never given away: where all belong
  at::Tensor flat_;
  std::vector<at::Tensor> parts_;  ///< by parameter, 1-D
  std::size_t own_views_ = 0;      ///< tensors of the engine that show the memory
  std::optional<Registration> registration_;
};

}  // namespace fsdp::engine
