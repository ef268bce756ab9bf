// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/weight_views.hpp"

#include <ATen/ops/empty.h>

namespace fsdp::engine {

WeightViews::WeightViews(const Unit& unit, at::ScalarType dtype, const Message& freed)
    : unit_(unit), dtype_(dtype) {
  for (const Parameter& parameter : unit.parameters) {
    storages_.emplace_back(parameter.numel * Unit::itemsize_of(dtype), unit.device,
                           freed(parameter));
  }
}

void WeightViews::connect(const std::weak_ptr<TouchTarget>& target, int unit) {
  registrations_.reserve(storages_.size());
  for (const FlatStorage& storage : storages_) {
    const auto parameter = static_cast<int>(registrations_.size());
    registrations_.emplace_back(storage.key(), target, unit, parameter, StorageRole::kWeight);
  }
}

void WeightViews::show() const {
  const at::Tensor like = at::empty({0}, at::TensorOptions(dtype_).device(unit_.device));
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Parameter& parameter = unit_.parameters[i];
    parameter.tensor.set_data(storages_[i].tagged_view(like, parameter.sizes, parameter.strides));
  }
}

bool WeightViews::shows(int parameter) const {
  return unit_.at(parameter).tensor.storage().unsafeGetStorageImpl() ==
         storages_[static_cast<std::size_t>(parameter)].key();
}

void WeightViews::install(void* base) {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    storages_[i].install(static_cast<char*>(base) +
                         unit_.layout->offset(static_cast<int>(i)) * Unit::itemsize_of(dtype_));
  }
}

void WeightViews::remove() {
  for (FlatStorage& storage : storages_) {
    storage.remove();
  }
}

void WeightViews::set_freed_message(const Message& freed) {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    storages_[i].set_freed_message(freed(unit_.parameters[i]));
  }
}

}  // namespace fsdp::engine
