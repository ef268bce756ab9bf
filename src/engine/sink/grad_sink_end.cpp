// SPDX-License-Identifier: Apache-2.0
/// Where a reduction ends, and what becomes of its result.
#include <algorithm>
#include <utility>

#include "engine/sink/grad_sink.hpp"

namespace fsdp::engine {

// --- the last stage --------------------------------------------------------------------------

/// A bundle that is reduced twice in one backward leaves its first area before it gets the next.
void GradSink::begin_last_stage(int bundle) {
  if (home_ == nullptr) {
    return;
  }
  while (std::ranges::any_of(outer_,
                             [&](const Outer& outer) { return at(outer.unit).bundle == bundle; })) {
    advance_outer();
  }
  home_->begin(bundle);
}

GradSink::Destination GradSink::destination(int unit) {
  const bool has_grad = prepare_shard(unit);
  if (home_ == nullptr) {
    return {.dst = at(unit).flat_grad_shard, .accumulate = has_grad};
  }
  return {.dst = home_->expect(unit, has_grad), .accumulate = false};
}

/// What its last stage makes, or has made.
at::Tensor GradSink::reduced(int unit) const {
  return home_ == nullptr ? at(unit).flat_grad_shard : home_->arrival(unit);
}

void GradSink::last_stage_ended(int unit) {
  if (home_ != nullptr) {
    home_->send(unit);
  }
}

void GradSink::bring_home() {
  if (home_ != nullptr) {
    home_->settle();
  }
}

// --- what becomes of it ----------------------------------------------------------------------

void GradSink::hand_out() {
  while (!outer_.empty()) {
    advance_outer();
  }
  bring_home();
  presence_.agree(units_, divisor_);
  has_deferred_ = false;
  std::ranges::fill(has_sum_, 0);
  for (Unit& unit : units_) {
    for (Parameter& parameter : unit.parameters) {
      const bool is_present = std::exchange(parameter.is_present, false);
      parameter.was_reduced = is_present && unit.trains && parameter.tensor.requires_grad();
      if (parameter.was_reduced && !parameter.shard.grad().defined()) {
        parameter.shard.mutable_grad() = parameter.grad_shard;
      }
    }
  }
}

void GradSink::drop_collected() {
  while (!outer_.empty()) {
    advance_outer();
  }
  bring_home();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    has_sum_[unit] &= kWaits;
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.fired = 0;
      parameter.is_present =
          parameter.is_present && (has_partial_[unit] != 0 || has_sum_[unit] != 0);
    }
  }
}

void GradSink::zero() {
  has_deferred_ = false;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    has_partial_[unit] = has_sum_[unit] = 0;
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.is_present = parameter.is_deferred = false;
      parameter.shard.mutable_grad().reset();
    }
  }
}

void GradSink::start_over() {
  zero();
  outer_.clear();
  if (home_ != nullptr) {
    home_->drop();
  }
  std::ranges::fill(buffer_of_, -1);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    works_[unit].reset();
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.fired = 0;
    }
  }
}

}  // namespace fsdp::engine
