// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/grad_sink.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/sink/non_finite.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Where parameter `i` lies in its unit's flat gradient, in its own shape.
at::Tensor place_of(const Unit& unit, int i, const at::Tensor& flat) {
  const Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
  return flat.narrow(0, unit.layout->offset(i), parameter.numel)
      .as_strided(parameter.sizes, parameter.strides);
}

}  // namespace

// --- collecting ------------------------------------------------------------------------------

void GradSink::set_sync(GradientSync sync) {
  const bool has_replicas = std::ranges::any_of(
      layout_.units, [](const Unit& unit) { return unit.placement.replicate != nullptr; });
  sync_ =
      sync == GradientSync::kDeferReplicate && !has_replicas ? GradientSync::kEveryBackward : sync;
  make_deferred();
}

bool GradSink::defers(int bundle) const {
  const Placement& placement = at(layout_.members(bundle).front()).placement;
  return sync_ == GradientSync::kDeferAll ||
         (sync_ == GradientSync::kDeferReplicate && placement.shard == nullptr);
}

void GradSink::open(int bundle, int buffer) {
  buffer_of_[static_cast<std::size_t>(bundle)] = buffer;
  for (int unit : layout_.members(bundle)) {
    for (Arrival& arrival : of(unit).arrivals) {
      arrival.fired = 0;
      arrival.is_used = false;
    }
    if (!shards(unit).has_grad() && of(unit).has_sum == 0 && !of(unit).has_partial) {
      of(unit).bad_parameter = -1;  // gradients begin anew
    }
  }
}

bool GradSink::is_complete(int bundle) const {
  return std::ranges::all_of(layout_.members(bundle), [&](int unit) {
    const std::vector<Arrival>& arrivals = of(unit).arrivals;
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      if (arrivals[i].fired == 0 && at(unit).parameters[i].tensor.requires_grad()) {
        return false;
      }
    }
    return true;
  });
}

namespace {

/// Adds `source` to what is there, or copies it; whether the result has elements that are not
/// finite.
bool put_has_non_finite(const at::Tensor& place, const at::Tensor& source, bool adds) {
  if (!adds) {
    return copy_has_non_finite(place, source);
  }
  place.add_(source);
  return has_non_finite(place);
}

}  // namespace

void GradSink::collect(int unit, int parameter, const at::Tensor& grad) {
  const auto bundle = static_cast<std::size_t>(at(unit).bundle);
  Arrival& which = of(unit).arrivals[static_cast<std::size_t>(parameter)];
  const bool is_deferred = defers(at(unit).bundle);
  const at::Tensor place = place_of(
      at(unit), parameter, is_deferred ? of(unit).deferred : buffer_view(unit, buffer_of_[bundle]));
  const at::Tensor source = grad.is_sparse() ? grad.to_dense() : grad;
  const bool adds = is_deferred ? which.is_deferred : which.fired > 0;
  begin_collecting(at(unit).bundle, adds);
  if (is_deferred) {  // complete() looks at the sum
    adds ? place.add_(source) : place.copy_(source);
  } else if (put_has_non_finite(place, source, adds)) {
    note_bad(unit, parameter);
  }
  which.fired += is_deferred ? 0 : 1;
  which.is_used = which.is_used || !is_deferred;
  which.is_deferred = which.is_deferred || is_deferred;
  has_deferred_ = has_deferred_ || is_deferred;
}

/// The current stream writes a gradient of the bundle, or adds to one.
void GradSink::begin_collecting(int bundle, bool adds) {
  const int buffer = buffer_of_[static_cast<std::size_t>(bundle)];
  if (buffer >= 0) {
    buffer_uses_[static_cast<std::size_t>(buffer)].come_after();
  }
  if (adds) {
    collected(bundle).come_after();
  }
  collected(bundle).note();
}

void GradSink::stand_in(int unit, int parameter) {
  const int bundle = at(unit).bundle;
  if (defers(bundle)) {
    return;
  }
  Arrival& which = of(unit).arrivals[static_cast<std::size_t>(parameter)];
  if (which.fired == 0) {
    begin_collecting(bundle, false);
    place_of(at(unit), parameter, buffer_view(unit, buffer_of_[static_cast<std::size_t>(bundle)]))
        .zero_();
  }
  ++which.fired;
}

// --- reducing --------------------------------------------------------------------------------

/// Makes `flat` this rank's whole contribution.
void GradSink::complete(int unit, at::Tensor& flat) {
  const Unit& laid_out = at(unit);
  for (int i = 0; i < laid_out.layout->parameters(); ++i) {
    const std::int64_t numel = laid_out.at(i).numel;
    const Arrival& arrival = of(unit).arrivals[static_cast<std::size_t>(i)];
    if (arrival.is_used || arrival.is_deferred) {
      presence_.set(unit, i);
    }
    if (numel == 0 || (arrival.fired > 0 && !arrival.is_deferred)) {
      continue;
    }
    const at::Tensor place = flat.narrow(0, laid_out.layout->offset(i), numel);
    if (!arrival.is_deferred) {
      place.zero_();
      continue;
    }
    const at::Tensor waiting = of(unit).deferred.narrow(0, laid_out.layout->offset(i), numel);
    if (put_has_non_finite(place, waiting, arrival.fired > 0)) {
      note_bad(unit, i);
    }
  }
  for (Arrival& arrival : of(unit).arrivals) {
    arrival.is_deferred = false;
  }
  if (laid_out.padding() > 0) {
    flat.narrow(0, laid_out.layout->total_numel(), laid_out.padding()).zero_();
  }
}

/// After the sum over ranks nobody knows who made what.
void GradSink::note_bad(int unit, int parameter) {
  int& first = of(unit).bad_parameter;
  first = first < 0 ? parameter : std::min(first, parameter);
}

/// Accumulation, parameter by parameter: a grad that was reset starts from zero, one that the user
/// replaced is taken over. Returns whether there is anything to add to.
bool GradSink::prepare_shard(int unit) {
  const bool has_sum = of(unit).has_sum != 0;
  const bool has_grad = shards(unit).has_grad();
  grads(unit).bring_home(at(unit));
  for (int i = 0; has_grad && i < at(unit).layout->parameters(); ++i) {
    const at::Tensor& shard = shards(unit).part(i);
    const at::Tensor& grad_shard = grads(unit).part(i);
    const at::Tensor& grad = shard.grad();
    if (!grad.defined()) {
      if (!has_sum) {
        grad_shard.zero_();
      }
    } else if (!grad.is_same(grad_shard)) {
      grad_shard.copy_(grad);
      shard.mutable_grad().reset();
      presence_.set(unit, i);
    }
  }
  // A backward inside of this one may complete the unit once more.
  of(unit).has_sum |= kOfThisBackward;
  return has_grad || has_sum;
}

void GradSink::start_inner(int unit, const at::Tensor& flat) {
  const Unit& laid_out = at(unit);
  const comm::Label label{unit, laid_out.name};
  comm::Transport& group = *laid_out.placement.shard;
  if (laid_out.placement.has_both_stages()) {
    of(unit).work =
        group.reduce_scatter(partial_view(unit), flat, {.accumulate = of(unit).has_partial}, label);
  } else {
    const Destination end = destination(unit);
    of(unit).work = group.reduce_scatter(
        end.dst, flat, {.divisor = divisor_, .accumulate = end.accumulate}, label);
  }
  ++counters_.reduce_scatters;
  const std::int64_t itemsize = Unit::itemsize_of(laid_out.reduce_dtype);
  counters_.reduce_bytes += laid_out.layout->total_numel() * itemsize;
  counters_.padding_bytes += laid_out.padding() * itemsize;
}

/// `src`: what this rank has of the slices that the replicas have in common, [slice_numel].
std::unique_ptr<comm::Work> GradSink::start_outer(int unit, const at::Tensor& src) {
  const Unit& laid_out = at(unit);
  const Destination end = destination(unit);
  const std::int64_t bytes = laid_out.logical_numel(laid_out.placement.give) *
                             static_cast<std::int64_t>(src.element_size());
  counters_.replica_bytes += laid_out.placement.is_refreshed() ? bytes : 2 * bytes;
  ++counters_.replica_reductions;
  return laid_out.placement.replicate->reduce_scatter(
      answered_part(laid_out, end.dst), src, {.divisor = divisor_, .accumulate = end.accumulate},
      {unit, "replicas of " + laid_out.name});
}

/// Where the sums of this rank's sub-slice go.
at::Tensor GradSink::answered_part(const Unit& unit, const at::Tensor& shard) {
  const std::int64_t numel = unit.layout->shard_numel();
  const Placement& placement = unit.placement;
  return shard.narrow(0, (placement.answers_for - placement.own.first) * numel, numel);
}

/// Ends what is under way over the replicas; sums that all of them need are gathered next.
void GradSink::advance_outer() {
  std::vector<Outer> under_way = std::exchange(outer_, {});
  for (Outer& outer : under_way) {
    outer.work->wait();
    const Unit& unit = at(outer.unit);
    if (outer.is_gathering || unit.placement.is_refreshed()) {
      last_stage_ended(outer.unit);
      continue;
    }
    const at::Tensor dst = reduced(outer.unit);
    outer_.push_back(
        {.unit = outer.unit,
         .work = unit.placement.replicate->all_gather(
             dst, answered_part(unit, dst), {outer.unit, "sums of the replicas of " + unit.name}),
         .is_gathering = true});
  }
}

void GradSink::start_reduce(int bundle, int buffer) {
  collected(bundle).come_after();
  collected(bundle).clear();
  buffer_uses_[static_cast<std::size_t>(buffer)].come_after();
  reduced_.come_after();
  if (!at(layout_.members(bundle).front()).placement.has_both_stages()) {
    begin_last_stage(bundle);
  }
  for (int unit : layout_.members(bundle)) {
    if (!trains(unit)) {
      continue;
    }
    at::Tensor flat = buffer_view(unit, buffer);
    complete(unit, flat);
    if (at(unit).placement.shard != nullptr) {
      start_inner(unit, flat);
    } else {
      of(unit).work = start_outer(unit, flat);
    }
  }
}

void GradSink::wait_reduce(int bundle) {
  const int buffer = std::exchange(buffer_of_[static_cast<std::size_t>(bundle)], -1);
  advance_outer();
  const Placement& of_bundle = at(layout_.members(bundle).front()).placement;
  if (of_bundle.has_both_stages() && sync_ != GradientSync::kDeferReplicate) {
    begin_last_stage(bundle);
  }
  for (int unit : layout_.members(bundle)) {
    auto work = std::exchange(of(unit).work, nullptr);
    const Placement& placement = at(unit).placement;
    if (work == nullptr) {
      continue;
    }
    if (placement.shard == nullptr) {
      outer_.push_back({.unit = unit, .work = std::move(work)});
      continue;
    }
    work->wait();
    if (placement.replicate == nullptr) {
      last_stage_ended(unit);
    }
    if (sync_ == GradientSync::kDeferReplicate) {
      if (placement.replicate != nullptr) {
        of(unit).has_partial = true;
      } else {
        of(unit).has_sum |= kWaits;
      }
      has_deferred_ = true;
      continue;
    }
    if (placement.replicate == nullptr) {
      continue;
    }
    outer_.push_back({.unit = unit, .work = start_outer(unit, partial_view(unit))});
    of(unit).has_partial = false;
  }
  // The reduce buffer is given back: what was read from it must have ended.
  if (of_bundle.shard == nullptr) {
    advance_outer();
  }
  buffer_uses_[static_cast<std::size_t>(buffer)].clear();
  buffer_uses_[static_cast<std::size_t>(buffer)].mark();
  reduced_.mark();
  next_partial_ = 1 - next_partial_;
}

}  // namespace fsdp::engine
