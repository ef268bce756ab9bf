// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/grad_guards.hpp"

#include <ATen/ops/empty.h>

namespace fsdp::engine {

GradGuards::GradGuards(const Unit& unit, int index, const std::weak_ptr<TouchTarget>& target)
    : unit_(unit) {
  const at::Tensor like = at::empty({0}, at::TensorOptions(unit.param_dtype).device(unit.device));
  for (const Parameter& parameter : unit.parameters) {
    storages_.emplace_back(
        parameter.numel * Unit::itemsize_of(unit.param_dtype), unit.device,
        "the grad of \"" + parameter.name + "\" lives in shards: see sharded.named_parameters()");
    registrations_.emplace_back(storages_.back().key(), target, index,
                                static_cast<int>(guards_.size()), StorageRole::kGradGuard);
    guards_.push_back(storages_.back().tagged_view(like, parameter.sizes, parameter.strides));
  }
}

void GradGuards::set() const {
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (unit_.parameters[i].tensor.requires_grad()) {
      unit_.parameters[i].tensor.mutable_grad() = guards_[i];
    }
  }
}

void GradGuards::reset() const {
  for (const Parameter& parameter : unit_.parameters) {
    parameter.tensor.mutable_grad().reset();
  }
}

}  // namespace fsdp::engine
