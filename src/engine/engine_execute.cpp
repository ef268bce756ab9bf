// SPDX-License-Identifier: Apache-2.0
/// The schedule's actions, carried out: the part of the engine that moves bytes.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>

#include "engine/engine.hpp"

namespace fsdp::engine {

using schedule::Action;
using schedule::ActionKind;

// NOTE [when a slice of shared weights may be written]
// With weights in shared memory a rank's shard is what its peers compute with. Its optimizer may
// write when all ranks are done with the weights, and peers may read again when it has written:
//
//   backward's end   the schedule asks for a fence. Where the transport says so, the wait for the
//                    last reduce-scatter is one: every rank waits for it after its own backward has
//                    ended (the last reduction of a backward is waited for nowhere else), and the
//                    wait returns after all have come to it. Else an agreement.
//   other reads      operators that took weights since (evaluation, a norm): the first write to a
//                    shard asks for an agreement. See Engine::shard_written().
//   next read        the agreement that stands for a unit's gather: a rank joins it after its own
//                    optimizer's step.
//
// Where operators take another type than the shards have, what is shared is a copy. It is written
// just before that agreement, when the shard has changed, hence after the fence that came before
// the change; a unit whose shard has changed is read by nobody in between, see Engine::refresh().

void Engine::execute(const std::vector<Action>& actions, bool keeps_gradients) {
  // Gloo's threads inherit thread-local state, and our own copies need no touch.
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  bool has_reduced = false;
  try {
    for (const Action& action : actions) {
      switch (action.kind) {
        case ActionKind::kStartGather: start_gather(action); break;
        case ActionKind::kWaitGather: wait_gather(action); break;
        case ActionKind::kFree: free(action); break;
        case ActionKind::kOpenReduce: sink_->open(action.unit, action.slot); break;
        case ActionKind::kStartReduce: {
          const Unit& unit = at(action.unit);
          emit(trace::EventKind::kReduceStart, action.unit, action.slot);
          sink_->start_reduce(action.unit, action.slot);
          ++counters_.reduce_scatters;
          counters_.reduce_bytes += unit.layout->total_numel() * Unit::itemsize_of(unit.reduce_dtype);
          counters_.padding_bytes += unit.padding() * Unit::itemsize_of(unit.reduce_dtype);
          break;
        }
        case ActionKind::kWaitReduce:
          emit(trace::EventKind::kReduceWaitBegin, action.unit, action.slot);
          sink_->wait_reduce(action.unit, keeps_gradients);
          emit(trace::EventKind::kReduceWaitEnd, action.unit, action.slot);
          has_reduced = true;
          break;
        case ActionKind::kFence:
          if (!has_reduced || !communicator_.is_fenced_by_reduce_scatter()) {
            communicator_.agree({.name = "all ranks are done with the shared weights"})->wait();
          }
          is_read_since_fence_ = false;
          break;
      }
    }
  } catch (...) {
    // Ranks may have parted here: nothing that follows would match.
    record_failure();
    std::rethrow_exception(failure_);
  }
}

void Engine::start_gather(const Action& action) {
  const Unit& unit = at(action.unit);
  store_->start(unit, action.unit, action.slot);
  count_gather(unit, unit.param_dtype);
  emit_bytes(trace::EventKind::kGatherStart, action.unit, action.slot);
}

void Engine::count_gather(const Unit& unit, at::ScalarType dtype) {
  ++counters_.gathers;
  counters_.gather_bytes += unit.layout->total_numel() * Unit::itemsize_of(dtype);
  counters_.padding_bytes += unit.padding() * Unit::itemsize_of(dtype);
}

void Engine::wait_gather(const Action& action) {
  emit_bytes(trace::EventKind::kGatherWaitBegin, action.unit, action.slot);
  store_->wait(action.unit);
  at(action.unit).install(store_->address(action.unit, action.slot));
  emit_bytes(trace::EventKind::kGatherWaitEnd, action.unit, action.slot);
}

void Engine::free(const Action& action) {
  Unit& unit = at(action.unit);
  unit.remove();
  store_->release(unit, action.unit, action.slot, options_.poison_freed);
  emit(trace::EventKind::kFree, action.unit, action.slot);
}

void Engine::emit(trace::EventKind kind, int unit, int slot) {
  if (options_.observer) {
    options_.observer(
        {kind, unit, slot, std::chrono::steady_clock::now().time_since_epoch().count()});
  }
}

void Engine::emit_bytes(trace::EventKind kind, int unit, int slot) {
  if (options_.observer) {
    options_.observer({kind, unit, slot,
                       std::chrono::steady_clock::now().time_since_epoch().count(),
                       store_->address(unit, slot), at(unit).gathered_bytes()});
  }
}

}  // namespace fsdp::engine
