// SPDX-License-Identifier: Apache-2.0
#include "optim/flat_views.hpp"

#include <unordered_map>

namespace fsdp::optim {

FlatViews views_with_gradients(const Sharded& sharded) {
  const std::vector<at::Tensor> flats = sharded.flat_shards();
  const std::vector<at::Tensor> flat_grads = sharded.flat_grad_shards();
  const std::vector<at::Tensor> parameters = sharded.parameters();
  std::unordered_map<const void*, std::size_t> unit_of_storage;
  for (std::size_t unit = 0; unit < flats.size(); ++unit) {
    unit_of_storage[flats[unit].storage().unsafeGetStorageImpl()] = unit;
  }
  std::vector<std::vector<const at::Tensor*>> with_grad(flats.size());
  std::vector<bool> is_whole(flats.size(), true);
  for (const at::Tensor& parameter : parameters) {
    const std::size_t unit = unit_of_storage.at(parameter.storage().unsafeGetStorageImpl());
    if (parameter.grad().defined()) {
      with_grad[unit].push_back(&parameter);
    } else {
      is_whole[unit] = false;
    }
  }
  FlatViews views;
  const auto add = [&](const at::Tensor& shard, const at::Tensor& grad, std::size_t unit,
                       std::int64_t offset) {
    views.shards.push_back(shard);
    views.grads.push_back(grad);
    views.units.push_back(unit);
    views.offsets.push_back(offset);
  };
  for (std::size_t unit = 0; unit < flats.size(); ++unit) {
    bool is_ours = is_whole[unit] && flat_grads[unit].defined();
    for (const at::Tensor* parameter : with_grad[unit]) {
      // A user may have replaced a grad by a tensor of their own.
      is_ours = is_ours && parameter->grad().storage().is_alias_of(flat_grads[unit].storage());
    }
    if (is_ours) {
      add(flats[unit], flat_grads[unit], unit, 0);
      continue;
    }
    for (const at::Tensor* parameter : with_grad[unit]) {
      add(*parameter, parameter->grad(), unit,
          parameter->storage_offset() - flats[unit].storage_offset());
    }
  }
  return views;
}

}  // namespace fsdp::optim
