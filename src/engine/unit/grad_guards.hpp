// SPDX-License-Identifier: Apache-2.0
/// Placeholders in the grads of the module's tensors: their gradients live in shards, and any use
/// of a placeholder throws an error that says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/touch/flat_storage.hpp"
#include "engine/touch/touch.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

class GradGuards {
 public:
  /// For the parameters of `unit`, number `index`, which outlives this.
  GradGuards(const Unit& unit, int index, const std::weak_ptr<TouchTarget>& target);

  /// Puts them into the grads of all that require grad.
  void set() const;
  /// Takes them out, and anything else.
  void reset() const;

 private:
  const Unit& unit_;
  std::vector<FlatStorage> storages_;  ///< by parameter
  std::vector<at::Tensor> guards_;     ///< by parameter
  std::vector<Registration> registrations_;
};

}  // namespace fsdp::engine
