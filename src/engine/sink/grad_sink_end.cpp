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
    return {.dst = grads(unit).flat(), .accumulate = has_grad};
  }
  return {.dst = home_->expect(unit, has_grad), .accumulate = false};
}

/// What its last stage makes, or has made.
at::Tensor GradSink::reduced(int unit) const {
  return home_ == nullptr ? grads(unit).flat() : home_->arrival(unit);
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
  presence_.agree(divisor_);
  has_deferred_ = false;
  for (int unit = 0; unit < layout_.count(); ++unit) {
    of(unit).has_sum = 0;
    grads(unit).bring_home(at(unit));
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      Arrival& arrival = of(unit).arrivals[static_cast<std::size_t>(i)];
      const bool is_present = presence_.has(unit, i);
      arrival.was_reduced = is_present && trains(unit) && at(unit).at(i).tensor.requires_grad();
      const at::Tensor& shard = shards(unit).part(i);
      if (arrival.was_reduced && !shard.grad().defined()) {
        shard.mutable_grad() = grads(unit).part(i);
      }
    }
  }
  presence_.forget_all();
}

void GradSink::take_over() {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    if (!grads(unit).is_defined()) {
      continue;
    }
    grads(unit).bring_home(at(unit));
    for (int i = 0; i < at(unit).layout->parameters(); ++i) {
      at::Tensor& grad = shards(unit).part(i).mutable_grad();
      if (grad.defined() && !grad.is_same(grads(unit).part(i))) {
        grads(unit).part(i).copy_(grad);
        grad = grads(unit).part(i);
      }
    }
  }
}

void GradSink::drop_collected() {
  while (!outer_.empty()) {
    advance_outer();
  }
  bring_home();
  for (int unit = 0; unit < layout_.count(); ++unit) {
    of(unit).has_sum &= kWaits;
    const bool waits = of(unit).has_partial || of(unit).has_sum != 0;
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      of(unit).arrivals[static_cast<std::size_t>(i)].fired = 0;
      of(unit).arrivals[static_cast<std::size_t>(i)].is_used = false;
      if (!waits) {
        presence_.forget(unit, i);
      }
    }
  }
}

std::int64_t GradSink::first_bad_contribution() const {
  std::int64_t position = 0;
  for (const ModuleLayout::Index index : layout_.ordered_parameters()) {
    const bool is_there = shards(index.unit).part(index.parameter).grad().defined();
    if (is_there && of(index.unit).bad_parameter == index.parameter) {
      return position;
    }
    ++position;
  }
  return -1;
}

void GradSink::zero() {
  has_deferred_ = false;
  presence_.forget_all();
  for (int unit = 0; unit < layout_.count(); ++unit) {
    of(unit).has_partial = false;
    of(unit).has_sum = 0;
    of(unit).bad_parameter = -1;
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      of(unit).arrivals[static_cast<std::size_t>(i)].is_deferred = false;
      shards(unit).part(i).mutable_grad().reset();
    }
  }
}

void GradSink::forget(int unit, int parameter) {
  forget_waiting(unit, parameter);
  shards(unit).part(parameter).mutable_grad().reset();
}

void GradSink::zero(int unit, int parameter) {
  forget_waiting(unit, parameter);
  at::Tensor& grad = shards(unit).part(parameter).mutable_grad();
  if (grad.defined()) {
    grad.zero_();
  }
}

/// Of what waits, sums are of whole units.
void GradSink::forget_waiting(int unit, int parameter) {
  if (!has_deferred_) {
    return;
  }
  OfUnit& from = of(unit);
  const SliceRun& give = at(unit).placement.give;
  from.arrivals[static_cast<std::size_t>(parameter)].is_deferred = false;
  presence_.forget(unit, parameter);
  if (from.has_partial) {
    const auto piece = at(unit).layout->piece(parameter, give.first, give.count);
    from.partial.narrow(0, piece.shard_offset, piece.numel).zero_();
  }
  if ((from.has_sum & kWaits) != 0) {
    grads(unit).part(parameter).zero_();
  }
}

bool GradSink::has_deferred() const {
  for (int unit = 0; has_deferred_ && unit < layout_.count(); ++unit) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      if (of(unit).arrivals[static_cast<std::size_t>(i)].is_deferred || presence_.has(unit, i)) {
        return true;
      }
    }
  }
  return false;
}

void GradSink::start_over() {
  zero();
  outer_.clear();
  if (home_ != nullptr) {
    home_->drop();
  }
  std::ranges::fill(buffer_of_, -1);
  for (OfUnit& unit : of_units_) {
    unit.work.reset();
    for (Arrival& arrival : unit.arrivals) {
      arrival.fired = 0;
      arrival.is_used = false;
    }
  }
}

}  // namespace fsdp::engine
