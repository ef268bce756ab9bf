// SPDX-License-Identifier: Apache-2.0
/// full_parameters(): whole weights, in the shards' type, for as long as a scope lives.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/unit/home.hpp"
#include "engine/unit/slice.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Makes `whole` of what each rank's optimizer owns, over the replicas first where they own parts
/// of one slice. Names of its own, lest it pass for the same unit's gather in a peer's forward.
void gather_shards(const Unit& unit, const at::Tensor& whole) {
  const comm::Label label{.name = "full_parameters: " + unit.name};
  at::Tensor slice = unit.flat_shard;
  if (unit.is_offloaded()) {
    slice = own_slices(unit, whole);
    transfer(unit, slice, unit.flat_shard);
  }
  if (unit.placement.is_refreshed()) {
    const at::Tensor own = std::exchange(
        slice, unit.is_offloaded() ? place_of_slice(unit, whole)
                                   : at::empty({unit.slice_numel()}, whole.options()));
    unit.placement.replicate->all_gather(slice, own, label)->wait();
  }
  if (unit.placement.shard == nullptr) {
    if (!slice.is_alias_of(whole)) {
      whole.copy_(slice);
    }
  } else {
    unit.placement.shard->all_gather(whole, slice, label)->wait();
  }
}

}  // namespace

std::uint64_t Engine::begin_full(bool writeback) {
  std::lock_guard lock(mutex_);
  c10::NoGradGuard no_grad;
  check_usable();
  recover_from_dead_backward();
  FSDP_CHECK(!is_backward_open_, ErrorCode::kInvalidArgument,
             "[full_parameters] a backward is under way");
  if (full_depth_ > 0) {
    FSDP_CHECK(!writeback || full_writeback_, ErrorCode::kInvalidArgument,
               "[full_parameters] a scope with writeback inside one without it");
    ++full_depth_;
    return full_scope_;
  }
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  execute(schedule_->reshard());
  try {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      at::Tensor whole = at::empty({unit.layout->padded_numel()},
                                   at::TensorOptions(unit.dtype).device(unit.device));
      ledger_.add(memory::Kind::kFullScope, unit.whole_bytes());
      full_bytes_ += unit.whole_bytes();
      gather_shards(unit, whole);
      if (unit.placement.shard != nullptr) {
        count_gather(unit, unit.dtype);
      }
      if (unit.is_cast()) {
        show_whole(static_cast<int>(i), whole.data_ptr());
      } else {
        unit.install(whole.data_ptr());
      }
      full_buffers_.push_back(std::move(whole));
    }
  } catch (...) {
    record_failure();
    std::rethrow_exception(failure_);
  }
  for (int bundle = 0; bundle < bundles_.count(); ++bundle) {
    schedule_->hold(bundle);
  }
  full_writeback_ = writeback;
  full_depth_ = 1;
  return ++full_scope_;
}

void Engine::end_full(std::uint64_t scope) noexcept {
  std::lock_guard lock(mutex_);
  const bool is_over = full_depth_ == 0 || scope != full_scope_ || is_stale();
  if (is_over || failure_ != nullptr || --full_depth_ > 0) {
    return;
  }
  c10::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (full_writeback_) {
      transfer(unit, unit.flat_shard, own_slices(unit, full_buffers_[i]));
      unit.flat_shard.unsafeGetTensorImpl()->bump_version();
    }
    hide_whole(unit);
    unit.rest();
  }
  for (int bundle = 0; bundle < bundles_.count(); ++bundle) {
    schedule_->unhold(bundle);
  }
  full_buffers_.clear();
  ledger_.remove(memory::Kind::kFullScope, std::exchange(full_bytes_, 0));
  full_writeback_ = false;
}

// NOTE [full parameters of a unit that is cast]
// The module's tensors have the low type, what a scope shows has the shards'. So for its length
// they get storages of their own: a view of a low-precision weight that somebody kept then reads
// freed memory, which throws, and never the bytes of another type.

void Engine::show_whole(int index, void* base) {
  Unit& unit = at(index);
  const at::Tensor like = at::empty({0}, at::TensorOptions(unit.dtype).device(unit.device));
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    parameter.whole_storage = std::make_unique<FlatStorage>(
        parameter.numel * unit.itemsize(), unit.device,
        "parameter \"" + parameter.name + "\" was whole in a full_parameters() scope that is over");
    parameter.whole_storage->install(static_cast<char*>(base) +
                                     unit.layout->offset(i) * unit.itemsize());
    register_storage(parameter.whole_storage->key(), weak_from_this(), index, i,
                     StorageRole::kWeight);
    parameter.tensor.set_data(
        parameter.whole_storage->tagged_view(like, parameter.sizes, parameter.strides));
  }
}

void Engine::hide_whole(Unit& unit) {
  const at::Tensor like = at::empty({0}, at::TensorOptions(unit.param_dtype).device(unit.device));
  for (Parameter& parameter : unit.parameters) {
    if (parameter.whole_storage != nullptr) {
      parameter.tensor.set_data(
          parameter.storage->tagged_view(like, parameter.sizes, parameter.strides));
      unregister_storage(parameter.whole_storage->key());
      parameter.whole_storage->remove();
      parameter.whole_storage.reset();
    }
  }
}

}  // namespace fsdp::engine
