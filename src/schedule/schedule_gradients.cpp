// SPDX-License-Identifier: Apache-2.0
/// The half of the schedule that hears of gradients.
#include <algorithm>
#include <span>

#include "schedule/schedule.hpp"

namespace fsdp::schedule {

const std::vector<Action>& Schedule::gradient(int unit) {
  actions_.clear();
  if (at(unit).gradients == Gradients::kReducing) {
    wait_reduce(unit);  // a second round: the parameter is used in two nested backward passes
  }
  if (at(unit).gradients == Gradients::kNone) {
    const int buffer = take_buffer(unit);
    actions_.push_back({ActionKind::kOpenReduce, unit, buffer});
  }
  return actions_;
}

const std::vector<Action>& Schedule::gradients_complete(int unit) {
  actions_.clear();
  if (at(unit).gradients == Gradients::kCollecting) {
    start_reduce(unit);
  }
  return actions_;
}

const std::vector<Action>& Schedule::end_backward(bool flush) {
  actions_.clear();
  for (int unit = 0; unit < config_.units && flush; ++unit) {
    if (at(unit).gradients == Gradients::kNone && at(unit).trainable && !at(unit).reduced) {
      const int buffer = take_buffer(unit);
      actions_.push_back({ActionKind::kOpenReduce, unit, buffer});
    }
    if (at(unit).gradients == Gradients::kCollecting) {
      start_reduce(unit);
    }
  }
  while (!reducing_.empty()) {
    wait_reduce(reducing_.front());
  }
  for (int unit = 0; unit < config_.units; ++unit) {
    if (at(unit).pins == 0) {
      free(unit);
    }
  }
  close_pass();
  forget_reductions();
  return actions_;
}

const std::vector<Action>& Schedule::abort_backward() {
  actions_.clear();
  while (!reducing_.empty()) {
    wait_reduce(reducing_.front());
  }
  for (int unit : collecting_) {
    buffers_[static_cast<std::size_t>(at(unit).buffer)] = -1;
    at(unit).buffer = -1;
    at(unit).gradients = Gradients::kNone;
  }
  collecting_.clear();
  for (int unit = 0; unit < config_.units; ++unit) {
    if (at(unit).pins == 0) {
      free(unit);
    }
  }
  // What was recorded stops in the middle: it predicts nothing.
  recording_.clear();
  open_ = false;
  forget_reductions();
  return actions_;
}

void Schedule::set_trainable(int unit, bool trainable) { at(unit).trainable = trainable; }

bool Schedule::is_collecting(int unit) const {
  return at(unit).gradients == Gradients::kCollecting;
}

void Schedule::forget_reductions() {
  for (UnitState& unit : units_) {
    unit.reduced = false;
  }
}

int Schedule::take_buffer(int unit) {
  int buffer = -1;
  if (at(unit).own_buffer >= 0) {
    buffer = at(unit).own_buffer;
  } else {
    const auto ring = std::span(buffers_).first(static_cast<std::size_t>(config_.reduce_buffers));
    auto place = std::find(ring.begin(), ring.end(), -1);
    if (place == ring.end()) {
      const auto in_ring = [&](int other) { return at(other).buffer < config_.reduce_buffers; };
      auto oldest = std::find_if(reducing_.begin(), reducing_.end(), in_ring);
      if (oldest == reducing_.end()) {
        // All buffers wait for gradients: reduce the oldest as it is; the rest makes a second
        // round.
        const int partial = *std::find_if(collecting_.begin(), collecting_.end(), in_ring);
        start_reduce(partial);
        oldest = std::find(reducing_.begin(), reducing_.end(), partial);
      }
      wait_reduce(*oldest);
      place = std::find(ring.begin(), ring.end(), -1);
    }
    buffer = static_cast<int>(place - ring.begin());
  }
  buffers_[static_cast<std::size_t>(buffer)] = unit;
  at(unit).buffer = buffer;
  at(unit).gradients = Gradients::kCollecting;
  collecting_.push_back(unit);
  return buffer;
}

void Schedule::start_reduce(int unit) {
  while (!reducing_.empty()) {
    wait_reduce(reducing_.front());
  }
  std::erase(collecting_, unit);
  at(unit).gradients = Gradients::kReducing;
  at(unit).reduced = true;
  reducing_.push_back(unit);
  actions_.push_back({ActionKind::kStartReduce, unit, at(unit).buffer});
}

void Schedule::wait_reduce(int unit) {
  // Reductions are waited for in the order in which they were issued, on every rank.
  while (at(unit).gradients == Gradients::kReducing) {
    const int first = reducing_.front();
    reducing_.pop_front();
    actions_.push_back({ActionKind::kWaitReduce, first, at(first).buffer});
    buffers_[static_cast<std::size_t>(at(first).buffer)] = -1;
    at(first).buffer = -1;
    at(first).gradients = Gradients::kNone;
  }
}

}  // namespace fsdp::schedule
