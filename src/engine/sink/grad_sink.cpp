// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/grad_sink.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

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
      units_, [](const Unit& unit) { return unit.placement.replicate != nullptr; });
  sync_ =
      sync == GradientSync::kDeferReplicate && !has_replicas ? GradientSync::kEveryBackward : sync;
  make_deferred();
}

bool GradSink::defers(int bundle) const {
  const Placement& placement = at(bundles_.members(bundle).front()).placement;
  return sync_ == GradientSync::kDeferAll ||
         (sync_ == GradientSync::kDeferReplicate && placement.shard == nullptr);
}

void GradSink::open(int bundle, int buffer) {
  buffer_of_[static_cast<std::size_t>(bundle)] = buffer;
  for (int unit : bundles_.members(bundle)) {
    for (Parameter& parameter : at(unit).parameters) {
      parameter.fired = 0;
    }
  }
}

void GradSink::collect(int unit, int parameter, const at::Tensor& grad) {
  Unit& of = at(unit);
  Parameter& which = of.parameters[static_cast<std::size_t>(parameter)];
  const bool is_deferred = defers(of.bundle);
  const at::Tensor place =
      place_of(of, parameter,
               is_deferred ? deferred_[static_cast<std::size_t>(unit)]
                           : buffer_view(unit, buffer_of_[static_cast<std::size_t>(of.bundle)]));
  const at::Tensor source = grad.is_sparse() ? grad.to_dense() : grad;
  if (is_deferred ? which.is_deferred : which.fired > 0) {
    place.add_(source);
  } else {
    place.copy_(source);
  }
  which.fired += is_deferred ? 0 : 1;
  which.is_deferred = which.is_deferred || is_deferred;
  has_deferred_ = has_deferred_ || is_deferred;
}

// --- reducing --------------------------------------------------------------------------------

/// Makes `flat` this rank's whole contribution.
void GradSink::complete(int unit, at::Tensor& flat) {
  Unit& of = at(unit);
  for (int i = 0; i < of.layout->parameters(); ++i) {
    Parameter& parameter = of.parameters[static_cast<std::size_t>(i)];
    parameter.is_present = parameter.is_present || parameter.fired > 0 || parameter.is_deferred;
    if (parameter.numel == 0 || (parameter.fired > 0 && !parameter.is_deferred)) {
      continue;
    }
    const at::Tensor place = flat.narrow(0, of.layout->offset(i), parameter.numel);
    if (!parameter.is_deferred) {
      place.zero_();
      continue;
    }
    const at::Tensor waiting =
        deferred_[static_cast<std::size_t>(unit)].narrow(0, of.layout->offset(i), parameter.numel);
    if (parameter.fired > 0) {
      place.add_(waiting);
    } else {
      place.copy_(waiting);
    }
  }
  for (Parameter& parameter : of.parameters) {
    parameter.is_deferred = false;
  }
  if (of.padding() > 0) {
    flat.narrow(0, of.layout->total_numel(), of.padding()).zero_();
  }
}

/// Accumulation, parameter by parameter: a grad that was reset starts from zero, one that the user
/// replaced is taken over. Returns whether there is anything to add to.
bool GradSink::prepare_shard(int index) {
  Unit& unit = at(index);
  const bool has_sum = has_sum_[static_cast<std::size_t>(index)] != 0;
  const bool has_grad = std::ranges::any_of(
      unit.parameters, [](const Parameter& parameter) { return parameter.shard.grad().defined(); });
  for (Parameter& parameter : unit.parameters) {
    const at::Tensor& grad = parameter.shard.grad();
    if (!has_grad) {
      break;
    }
    if (!grad.defined()) {
      if (!has_sum) {
        parameter.grad_shard.zero_();
      }
    } else if (!grad.is_same(parameter.grad_shard)) {
      parameter.grad_shard.copy_(grad);
      parameter.shard.mutable_grad().reset();
      parameter.is_present = true;
    }
  }
  // A backward inside of this one may complete the unit once more.
  has_sum_[static_cast<std::size_t>(index)] |= kOfThisBackward;
  return has_grad || has_sum;
}

void GradSink::start_inner(int unit, const at::Tensor& flat) {
  Unit& of = at(unit);
  const auto index = static_cast<std::size_t>(unit);
  const comm::Label label{unit, of.name};
  if (of.placement.has_both_stages()) {
    works_[index] = of.placement.shard->reduce_scatter(
        partial_view(unit), flat, {.accumulate = has_partial_[index] != 0}, label);
  } else {
    const Destination end = destination(unit);
    works_[index] = of.placement.shard->reduce_scatter(
        end.dst, flat, {.divisor = divisor_, .accumulate = end.accumulate}, label);
  }
  ++counters_.reduce_scatters;
  counters_.reduce_bytes += of.layout->total_numel() * Unit::itemsize_of(of.reduce_dtype);
  counters_.padding_bytes += of.padding() * Unit::itemsize_of(of.reduce_dtype);
}

/// `src`: what this rank has of the slices that the replicas have in common, [slice_numel].
std::unique_ptr<comm::Work> GradSink::start_outer(int unit, const at::Tensor& src) {
  Unit& of = at(unit);
  const Destination end = destination(unit);
  const std::int64_t bytes =
      of.logical_numel(of.placement.give) * static_cast<std::int64_t>(src.element_size());
  counters_.replica_bytes += of.placement.is_refreshed() ? bytes : 2 * bytes;
  ++counters_.replica_reductions;
  return of.placement.replicate->reduce_scatter(answered_part(of, end.dst), src,
                                                {.divisor = divisor_, .accumulate = end.accumulate},
                                                {unit, "replicas of " + of.name});
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
  if (!at(bundles_.members(bundle).front()).placement.has_both_stages()) {
    begin_last_stage(bundle);
  }
  for (int unit : bundles_.members(bundle)) {
    Unit& of = at(unit);
    if (!of.trains) {
      continue;
    }
    at::Tensor flat = buffer_view(unit, buffer);
    complete(unit, flat);
    if (of.placement.shard != nullptr) {
      start_inner(unit, flat);
    } else {
      works_[static_cast<std::size_t>(unit)] = start_outer(unit, flat);
    }
  }
}

void GradSink::wait_reduce(int bundle) {
  buffer_of_[static_cast<std::size_t>(bundle)] = -1;
  advance_outer();
  const Placement& of_bundle = at(bundles_.members(bundle).front()).placement;
  if (of_bundle.has_both_stages() && sync_ != GradientSync::kDeferReplicate) {
    begin_last_stage(bundle);
  }
  for (int unit : bundles_.members(bundle)) {
    const auto index = static_cast<std::size_t>(unit);
    auto work = std::exchange(works_[index], nullptr);
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
      (placement.replicate != nullptr ? has_partial_ : has_sum_)[index] |= kWaits;
      has_deferred_ = true;
      continue;
    }
    if (placement.replicate == nullptr) {
      continue;
    }
    outer_.push_back({.unit = unit, .work = start_outer(unit, partial_view(unit))});
    has_partial_[index] = 0;
  }
  // The reduce buffer is given back: what was read from it must have ended.
  if (of_bundle.shard == nullptr) {
    advance_outer();
  }
  next_partial_ = 1 - next_partial_;
}

}  // namespace fsdp::engine
