// SPDX-License-Identifier: Apache-2.0
/// The module's tensors of one unit as views of storages that have memory only while the unit is
/// whole. An operator that takes one is a touch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/touch/flat_storage.hpp"
#include "engine/touch/touch.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class WeightViews {
 public:
  /// What a raw access reads while there is no memory.
  using Message = std::function<std::string(const Parameter&)>;

  /// Storages of `dtype` for the parameters of `unit`, which outlives this.
  WeightViews(const Unit& unit, at::ScalarType dtype, const Message& freed);
  /// Makes them known to the dispatcher.
  void connect(const std::weak_ptr<TouchTarget>& target, int unit);

  /// From here on the module's tensors are views of these storages.
  void show() const;
  /// Whether the module's tensor still is one.
  bool shows(int parameter) const;
  /// Points the storages into the whole unit at `base`, which they do not own.
  void install(void* base);
  void remove();
  void set_freed_message(const Message& freed);

 private:
  const Unit& unit_;
  at::ScalarType dtype_;
  std::vector<FlatStorage> storages_;  ///< by parameter
  std::vector<Registration> registrations_;
};

}  // namespace fsdp::engine
