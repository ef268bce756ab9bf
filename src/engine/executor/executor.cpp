// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/executor.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp::engine {

using schedule::Action;
using schedule::ActionKind;
using schedule::Pass;

Executor::Executor(const ModuleLayout& layout, Counters& counters, Health& health,
                   const Events& events, Residency& residency, Gradients& gradients,
                   ModuleBuffers& buffers)
    : layout_(layout),
      counters_(counters),
      health_(health),
      events_(events),
      residency_(residency),
      gradients_(gradients),
      buffers_(buffers),
      schedule_(make_schedule(layout)),
      backward_streams_(layout.device()) {}

schedule::Schedule Executor::make_schedule(const ModuleLayout& layout) {
  schedule::Schedule schedule(layout.schedule);
  for (const Unit& unit : layout.units) {
    if (unit.is_optional) {
      schedule.set_optional(unit.bundle);
    }
  }
  return schedule;
}

void Executor::run(const std::vector<Action>& actions) {
  health_.together([&] {
    for (const Action& action : actions) {
      switch (action.kind) {
        case ActionKind::kStartGather: residency_.start_gather(action.unit, action.slot); break;
        case ActionKind::kWaitGather:
          residency_.wait_gather(action.unit, action.slot, pass_ == Pass::kForward);
          break;
        case ActionKind::kFree: residency_.free(action.unit, action.slot); break;
        case ActionKind::kOpenReduce: gradients_.open_reduce(action.unit, action.slot); break;
        case ActionKind::kStartReduce:
          residency_.launch();
          emit_reduced(trace::EventKind::kReduceStart, action);
          gradients_.start_reduce(action.unit, action.slot);
          break;
        case ActionKind::kWaitReduce:
          emit_reduced(trace::EventKind::kReduceWaitBegin, action);
          gradients_.wait_reduce(action.unit);
          emit_reduced(trace::EventKind::kReduceWaitEnd, action);
          break;
      }
    }
  });
}

void Executor::emit_reduced(trace::EventKind kind, const Action& action) const {
  for (int unit : layout_.members(action.unit)) {
    if (gradients_.trains(unit)) {
      events_.emit(kind, unit, action.slot);
    }
  }
}

// --- touches ---------------------------------------------------------------------------------

void Executor::begin_forward() {
  if (is_forward_checked_) {
    return;
  }
  residency_.check_in_shards("touch");
  residency_.bring_home();
  is_forward_checked_ = true;
  buffers_.sync();
  // Stale copies go before any unit is gathered ahead, not at its touch.
  for (int unit = 0; unit < layout_.count(); ++unit) {
    refresh(unit);
  }
}

void Executor::refresh(int unit) {
  const int bundle = layout_.at(unit).bundle;
  if (residency_.refresh(unit) && !schedule_.is_pinned(bundle)) {
    run(schedule_.invalidate(bundle));
  }
}

void Executor::take(std::span<const int> units, Pass pass, const Taker& taker) {
  for (int unit : units) {
    if (pass == Pass::kBackward) {
      residency_.check_unchanged_since_forward(unit);
    }
    refresh(unit);
    if (pass != Pass::kBackward) {
      residency_.note_forward(unit);
    }
  }
  pass_ = pass;
  ++counters_.touches;
  for (int unit : units) {
    events_.emit(trace::EventKind::kTouch, unit);
  }
  const std::vector<int> bundles = bundles_of(units);
  if (!bundles.empty()) {
    take_gathered(bundles, units, pass, taker);
  }
  for (int unit : units) {
    residency_.use_on_stream(unit);
  }
  if (pass == Pass::kBackward) {
    backward_streams_.note();
  }
}

void Executor::take_gathered(const std::vector<int>& bundles, std::span<const int> units, Pass pass,
                             const Taker& taker) {
  residency_.note_read();
  const std::vector<Action>* actions = nullptr;
  try {
    actions = &schedule_.touch(bundles, pass, taker.signature);
  } catch (const Error& error) {
    fail_for_slots(error, units, bundles.size(), taker.op);
  }
  try {
    run(*actions);
  } catch (...) {
    schedule_.release(bundles);
    throw;
  }
}

void Executor::fail_for_slots(const Error& error, std::span<const int> units, std::size_t bundles,
                              const char* op) const {
  std::string names;
  for (int unit : units) {
    names += (names.empty() ? "\"" : ", \"") + layout_.at(unit).name + "\"";
  }
  // Operators that still run on other threads may hold slots as well.
  const int without_extra = 1 + layout_.schedule.prefetch;
  const int extra_slots =
      std::max(static_cast<int>(bundles), layout_.schedule.slots + 1) - without_extra;
  fail(error.code(), "[touch] ", op, " takes weights of the units ", names, ": ", error.text(),
       ". Set MemoryOptions::extra_slots to ", extra_slots,
       " or more, or put these weights into one unit");
}

void Executor::release(std::span<const int> units) {
  const std::vector<int> bundles = bundles_of(units);
  if (!bundles.empty()) {
    run(schedule_.release(bundles));
  }
}

std::vector<int> Executor::bundles_of(std::span<const int> units) const {
  std::vector<int> bundles;
  for (int unit : units) {
    if (!layout_.at(unit).placement.is_resident()) {
      bundles.push_back(layout_.at(unit).bundle);
    }
  }
  std::ranges::sort(bundles);
  bundles.erase(std::ranges::unique(bundles).begin(), bundles.end());
  return bundles;
}

std::vector<std::vector<int>> Executor::expected_run(std::span<const int> units, Pass pass) const {
  const std::vector<int> bundles = bundles_of(units);
  std::vector<std::vector<int>> run = schedule_.upcoming_run(bundles, pass);
  if (run.empty()) {
    for (int bundle : bundles) {
      run.push_back({bundle});
    }
  }
  for (std::vector<int>& touched : run) {
    std::vector<int> members;
    for (int bundle : touched) {
      const auto of = layout_.members(bundle);
      members.insert(members.end(), of.begin(), of.end());
    }
    std::ranges::sort(members);
    touched = std::move(members);
  }
  // Units that are whole at rest are gathered nowhere: where they come does not matter.
  std::vector<int> resident;
  std::ranges::copy_if(units, std::back_inserter(resident),
                       [&](int unit) { return layout_.at(unit).placement.is_resident(); });
  if (!resident.empty()) {
    run.push_back(std::move(resident));
  }
  return run;
}

// --- backward --------------------------------------------------------------------------------

void Executor::begin_backward() {
  residency_.bring_home();
  for (int bundle = 0; bundle < layout_.bundles.count(); ++bundle) {
    schedule_.set_trainable(bundle, gradients_.is_reduced(bundle));
  }
}

void Executor::gradient(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in) {
  const int bundle = layout_.at(unit).bundle;
  const bool is_deferred = gradients_.defers(bundle);
  if (!is_deferred) {
    run(schedule_.gradient(bundle));
  }
  gradients_.collect(unit, parameter, tensor, is_stand_in);
  backward_streams_.note();
  if (!is_deferred && gradients_.is_complete(bundle)) {
    run(schedule_.gradients_complete(bundle));
  }
}

void Executor::end_backward() {
  const Gradients::End end = gradients_.close();
  is_forward_checked_ = false;
  run(schedule_.end_backward(end.reduces));
  join_backward_streams();
  gradients_.deliver(end);
  if (end.hands_out) {
    residency_.note_fence();  // all ranks have come to the end of this backward
  }
  events_.emit(trace::EventKind::kBackwardEnd, -1);
  const bool is_first = gradients_.set_guards();
  residency_.forget_forwards();
  if (is_first) {
    residency_.check_all_taken();
  }
  if (end.hands_out) {
    gradients_.run_hooks();
  }
}

void Executor::abort_backward() {
  residency_.forget_forwards();
  run(schedule_.abort_backward());
  join_backward_streams();
  gradients_.bury();
}

/// What the caller of backward() enqueues next finds gradients reduced and buffers free.
void Executor::join_backward_streams() {
  backward_streams_.come_after();
  backward_streams_.clear();
}

// --- other states ----------------------------------------------------------------------------

void Executor::hold() {
  for (int bundle = 0; bundle < layout_.bundles.count(); ++bundle) {
    schedule_.hold(bundle);
  }
}

void Executor::unhold() {
  for (int bundle = 0; bundle < layout_.bundles.count(); ++bundle) {
    schedule_.unhold(bundle);
  }
}

void Executor::start_over() {
  past_misses_ += schedule_.misses();
  schedule_ = make_schedule(layout_);
  is_forward_checked_ = false;
}

}  // namespace fsdp::engine
