// SPDX-License-Identifier: Apache-2.0
/// Placeholders in the grads of the module's tensors: their gradients live in shards, and any use
/// of a placeholder throws an error that says so. Whether one is still where it was put says what
/// the program did to the grad: see NOTE [two handles on one gradient].
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/touch/flat_storage.hpp"
#include "engine/touch/touch.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// What the grad of a module's tensor is.
enum class ModuleGrad {
  kAsLeft,    ///< what set() or take_out() left there
  kReset,     ///< undefined, where a placeholder was
  kAssigned,  ///< somebody else's tensor
};

class GradGuards {
 public:
  /// For the parameters of `unit`, number `index`, which outlives this.
  GradGuards(const Unit& unit, int index, const std::weak_ptr<TouchTarget>& target);

  /// Puts them into the grads of all that require grad.
  void set();
  /// Takes them out, and anything else.
  void reset();
  /// Takes one out, for autograd to accumulate.
  void take_out(int parameter);
  ModuleGrad state(int parameter) const;
  /// That its grad was reset is known.
  void accept_reset(int parameter) { is_set_[static_cast<std::size_t>(parameter)] = 0; }

 private:
  const Unit& unit_;
  std::vector<FlatStorage> storages_;  ///< by parameter
  std::vector<at::Tensor> guards_;     ///< by parameter
  std::vector<char> is_set_;           ///< by parameter
  std::vector<Registration> registrations_;
};

}  // namespace fsdp::engine
