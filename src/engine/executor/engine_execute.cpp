// SPDX-License-Identifier: Apache-2.0
/// The schedule's actions, carried out: the part of the engine that moves bytes.
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>

#include "engine/executor/engine.hpp"
#include "engine/unit/slice.hpp"

namespace fsdp::engine {

using schedule::Action;
using schedule::ActionKind;

// NOTE [when a slice of shared weights may be written]
// With weights in shared memory a rank's shard is what its peers compute with. Its optimizer may
// write when all ranks are done with the weights, and peers may read again when it has written:
//
//   backward's end   ranks tell each other which gradients there are (Presence): each does so after
//                    its own backward, and goes on when it has heard of all. That is the fence.
//   other reads      operators that took weights since (evaluation, a norm, a backward that reduced
//                    nothing): the first write to a shard asks for an agreement. See
//                    Engine::shard_written().
//   next read        the agreement that stands for a unit's gather: a rank joins it after its own
//                    optimizer's step.
//
// Where operators take another type than the shards have, what is shared is a copy. It is written
// just before that agreement, when the shard has changed, hence after the fence that came before
// the change; a unit whose shard has changed is read by nobody in between, see Engine::refresh().

template <class Action>
void Engine::together(Action action) {
  // Gloo's threads inherit thread-local state, and our own copies need no touch.
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  try {
    action();
  } catch (...) {
    // Ranks may have parted here: nothing that follows would match.
    record_failure();
    std::rethrow_exception(failure_);
  }
}

void Engine::execute(const std::vector<Action>& actions) {
  together([&] {
    for (const Action& action : actions) {
      switch (action.kind) {
        case ActionKind::kStartGather: start_gather(action); break;
        case ActionKind::kWaitGather: wait_gather(action); break;
        case ActionKind::kFree: free(action); break;
        case ActionKind::kOpenReduce: sink_->open(action.unit, action.slot); break;
        case ActionKind::kStartReduce:
          store_->launch();
          emit_reduced(trace::EventKind::kReduceStart, action);
          sink_->start_reduce(action.unit, action.slot);
          break;
        case ActionKind::kWaitReduce:
          emit_reduced(trace::EventKind::kReduceWaitBegin, action);
          sink_->wait_reduce(action.unit);
          emit_reduced(trace::EventKind::kReduceWaitEnd, action);
          break;
      }
    }
  });
}

void Engine::fence() {
  together(
      [&] { communicator_.agree({.name = "all ranks are done with the shared weights"})->wait(); });
  is_read_since_fence_ = false;
}

void Engine::hand_out_gradients() {
  together([&] { sink_->hand_out(); });
  is_read_since_fence_ = false;  // all ranks have come to the end of this backward
}

void Engine::bring_gradients_home() {
  together([&] { sink_->bring_home(); });
}

void Engine::drop_gradients() {
  together([&] { sink_->drop_collected(); });
}

void Engine::renew_slice(int index, int slot) {
  Unit& unit = at(index);
  at::Tensor place;
  if (unit.is_offloaded() && !unit.placement.is_resident()) {
    const auto on_device = at::TensorOptions(unit.param_dtype).device(unit.device);
    place = place_of_slice(unit, at::from_blob(store_->address(index, slot),
                                               {unit.layout->padded_numel()}, on_device));
  }
  const Refreshed refreshed = refresh_slice(unit, index, place);
  counters_.casts += refreshed.was_cast ? 1 : 0;
  if (refreshed.was_gathered) {
    ++counters_.refreshes;
    counters_.refresh_bytes +=
        unit.logical_numel(unit.placement.give) * Unit::itemsize_of(unit.param_dtype);
  }
}

void Engine::start_gather(const Action& action) {
  for (int index : bundles_.members(action.unit)) {
    Unit& unit = at(index);
    renew_slice(index, action.slot);
    counters_.secondary_gathers += unit.has_secondary ? 1 : 0;
    store_->start(unit, index, action.slot);
    count_gather(unit, unit.param_dtype);
    emit_bytes(trace::EventKind::kGatherStart, index, action.slot);
  }
}

void Engine::count_gather(const Unit& unit, at::ScalarType dtype) {
  ++counters_.gathers;
  counters_.gather_bytes += unit.layout->total_numel() * Unit::itemsize_of(dtype);
  counters_.padding_bytes += unit.padding() * Unit::itemsize_of(dtype);
}

void Engine::wait_gather(const Action& action) {
  for (int index : bundles_.members(action.unit)) {
    Unit& unit = at(index);
    emit_bytes(trace::EventKind::kGatherWaitBegin, index, action.slot);
    store_->wait(index);
    unit.install(store_->address(index, action.slot));
    if (pass_ == schedule::Pass::kForward) {
      keep_secondary(unit, store_->address(index, action.slot));
    }
    emit_bytes(trace::EventKind::kGatherWaitEnd, index, action.slot);
  }
}

void Engine::free(const Action& action) {
  for (int index : bundles_.members(action.unit)) {
    Unit& unit = at(index);
    unit.rest();
    store_->release(unit, index, action.slot, options_.debug.poison_freed);
    emit(trace::EventKind::kFree, index, action.slot);
  }
}

void Engine::emit(trace::EventKind kind, int unit, int slot) {
  if (options_.debug.observer) {
    options_.debug.observer(
        {kind, unit, slot, std::chrono::steady_clock::now().time_since_epoch().count()});
  }
}

void Engine::emit_reduced(trace::EventKind kind, const Action& action) {
  for (int unit : bundles_.members(action.unit)) {
    if (at(unit).trains) {
      emit(kind, unit, action.slot);
    }
  }
}

void Engine::emit_bytes(trace::EventKind kind, int unit, int slot) {
  if (options_.debug.observer) {
    options_.debug.observer({kind, unit, slot,
                             std::chrono::steady_clock::now().time_since_epoch().count(),
                             store_->address(unit, slot), at(unit).gathered_bytes()});
  }
}

}  // namespace fsdp::engine
