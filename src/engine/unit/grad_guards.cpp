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
    is_set_.push_back(0);
  }
}

void GradGuards::set() {
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (unit_.parameters[i].tensor.requires_grad()) {
      unit_.parameters[i].tensor.mutable_grad() = guards_[i];
      is_set_[i] = 1;
    }
  }
}

void GradGuards::reset() {
  for (int i = 0; i < std::ssize(guards_); ++i) {
    take_out(i);
  }
}

void GradGuards::take_out(int parameter) {
  unit_.at(parameter).tensor.mutable_grad().reset();
  is_set_[static_cast<std::size_t>(parameter)] = 0;
}

ModuleGrad GradGuards::state(int parameter) const {
  const auto index = static_cast<std::size_t>(parameter);
  const at::Tensor& grad = unit_.at(parameter).tensor.unsafeGetTensorImpl()->grad();
  if (!grad.defined()) {
    return is_set_[index] != 0 ? ModuleGrad::kReset : ModuleGrad::kAsLeft;
  }
  // By its storage: zero_grad(/*set_to_none=*/false) leaves a detached alias of it there.
  const bool is_guard =
      grad.has_storage() && grad.storage().unsafeGetStorageImpl() == storages_[index].key();
  return is_guard ? ModuleGrad::kAsLeft : ModuleGrad::kAssigned;
}

}  // namespace fsdp::engine
