// SPDX-License-Identifier: Apache-2.0
/// full_parameters(): whole weights, in the shards' type, for as long as a scope lives.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "engine/engine.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

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
      // A name of its own, lest it pass for the same unit's gather in a peer's forward.
      communicator_.all_gather(whole, unit.flat_shard, {.name = "full_parameters: " + unit.name})
          ->wait();
      count_gather(unit, unit.dtype);
      schedule_->hold(static_cast<int>(i));
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
      const std::int64_t numel = unit.layout->shard_numel();
      unit.flat_shard.copy_(full_buffers_[i].narrow(0, numel * communicator_.rank(), numel));
    }
    hide_whole(unit);
    unit.remove();
    schedule_->unhold(static_cast<int>(i));
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
