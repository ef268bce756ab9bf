// SPDX-License-Identifier: Apache-2.0
#include "engine/grad_sink.hpp"

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

bool has_both_stages(const Unit& unit) {
  return unit.placement.shard != nullptr && unit.placement.replicate != nullptr;
}

}  // namespace

GradSink::GradSink(comm::Communicator& world, memory::Ledger& ledger, std::vector<Unit>& units,
                   const Bundles& bundles, SinkConfig config, Counters& counters)
    : world_(world),
      ledger_(ledger),
      units_(units),
      bundles_(bundles),
      config_(std::move(config)),
      counters_(counters),
      presence_(world, units),
      buffer_of_(static_cast<std::size_t>(bundles.count()), -1),
      works_(units.size()),
      deferred_(units.size()),
      partials_(units.size()),
      has_partial_(units.size()) {
  for (Unit& unit : units) {
    unit.trains = unit.is_trainable();
  }
  if (!make_room()) {
    make_buffers();  // nothing trains yet
    reserve_staging();
  }
}

GradSink::~GradSink() {
  works_.clear();
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    ledger_.remove(static_cast<memory::Kind>(kind), entered_[static_cast<memory::Kind>(kind)]);
  }
}

void GradSink::enter(memory::Kind kind, std::int64_t bytes) {
  ledger_.add(kind, bytes);
  entered_[kind] += bytes;
}

// --- memory ----------------------------------------------------------------------------------

bool GradSink::make_room() {
  bool is_new = false;
  for (Unit& unit : units_) {
    if (unit.trains && !unit.flat_grad_shard.defined()) {
      is_new = true;
      unit.flat_grad_shard =
          at::zeros({unit.shard_numel()}, at::TensorOptions(unit.dtype).device(unit.device));
      for (Parameter& parameter : unit.parameters) {
        parameter.grad_shard =
            unit.flat_grad_shard.narrow(0, parameter.piece.shard_offset, parameter.piece.numel)
                .detach();
      }
      enter(memory::Kind::kGradShards, unit.shard_bytes());
    }
  }
  if (is_new) {
    make_buffers();
    make_deferred();
    reserve_staging();
  }
  return is_new;
}

void GradSink::make_buffers() {
  places_ = place(units_, bundles_, [](const Unit& unit) {
    return unit.flat_grad_shard.defined() ? unit.reduced_bytes() : 0;
  });
  ledger_.remove(memory::Kind::kReduceBuffers,
                 std::exchange(entered_[memory::Kind::kReduceBuffers], 0));
  buffers_.clear();
  const c10::Device device = units_.front().device;
  const auto allocate = [&](std::int64_t bytes) {
    // In memory that peers read in place, where there is such: reducing then copies nothing.
    buffers_.push_back(device.is_cpu()
                           ? world_.buffer(bytes)
                           : at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    enter(memory::Kind::kReduceBuffers, bytes);
  };
  const auto is_in_ring = [&](int bundle) {
    return std::ranges::find(config_.own_buffers, bundle) == config_.own_buffers.end();
  };
  for (int buffer = 0; buffer < config_.buffers; ++buffer) {
    allocate(places_.largest(is_in_ring));
  }
  for (int bundle : config_.own_buffers) {
    allocate(places_.bytes[static_cast<std::size_t>(bundle)]);
  }
  partial_places_ = place(units_, bundles_, [](const Unit& unit) {
    const bool has_partial = has_both_stages(unit) && unit.flat_grad_shard.defined();
    return has_partial ? unit.slice_numel() * unit.itemsize() : 0;
  });
  const std::int64_t partial_bytes = partial_places_.largest([](int) { return true; });
  for (at::Tensor& buffer : partial_buffers_) {
    buffer = at::empty({partial_bytes}, at::TensorOptions(at::kByte).device(device));
    enter(memory::Kind::kReduceBuffers, partial_bytes);
  }
}

/// What the transports need beyond that, by group of ranks.
void GradSink::reserve_staging() {
  const auto reserve = [&](comm::Communicator* group, std::int64_t src_bytes, int in_flight) {
    const auto known = staging_.find(group);
    if (group != nullptr && (known == staging_.end() || known->second < src_bytes)) {
      staging_[group] = src_bytes;
      enter(memory::Kind::kStaging, group->reserve_staging(src_bytes, in_flight));
    }
  };
  std::map<comm::Communicator*, std::int64_t> inner, outer;
  int in_flight = 1;
  for (int bundle = 0; bundle < bundles_.count(); ++bundle) {
    int of_bundle = 0;
    for (int unit : bundles_.members(bundle)) {
      const Unit& of = at(unit);
      const bool has_room = of.flat_grad_shard.defined();
      of_bundle += has_room ? 1 : 0;
      std::int64_t& largest = inner[of.placement.shard];
      largest = std::max(largest, has_room ? of.reduced_bytes() : 0);
      std::int64_t& largest_slice = outer[of.placement.replicate];
      largest_slice = std::max(largest_slice, has_room ? of.slice_numel() * of.itemsize() : 0);
    }
    in_flight = std::max(in_flight, of_bundle);
  }
  for (const auto& [group, bytes] : inner) {
    reserve(group, bytes, in_flight);
  }
  for (const auto& [group, bytes] : outer) {
    reserve(group, bytes, in_flight);
  }
}

/// What the mode needs, for every unit that has room for gradients.
void GradSink::make_deferred() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const Unit& of = at(unit);
    const auto make = [&](at::Tensor& tensor, std::int64_t numel) {
      if (!tensor.defined()) {
        tensor = at::empty({numel}, at::TensorOptions(of.dtype).device(of.device));
        enter(memory::Kind::kDeferred, numel * of.itemsize());
      }
    };
    if (!of.flat_grad_shard.defined() || sync_ == GradientSync::kEveryBackward) {
      continue;
    }
    if (defers(of.bundle)) {
      make(deferred_[static_cast<std::size_t>(unit)], of.layout->padded_numel());
    } else if (has_both_stages(of)) {
      make(partials_[static_cast<std::size_t>(unit)], of.slice_numel());
    }
  }
}

namespace {
/// `numel` elements at `offset` of a byte tensor.
at::Tensor view(const at::Tensor& bytes, std::int64_t offset, std::int64_t numel,
                at::ScalarType dtype) {
  FSDP_ASSERT(bytes.numel() >= offset + numel * Unit::itemsize_of(dtype), "a buffer of ",
              bytes.numel(), " bytes is too small for ", numel, " elements at byte ", offset);
  return at::from_blob(static_cast<char*>(bytes.data_ptr()) + offset, {numel},
                       at::TensorOptions(dtype).device(bytes.device()));
}
}  // namespace

at::Tensor GradSink::buffer_view(int unit, int buffer) const {
  return view(buffers_[static_cast<std::size_t>(buffer)],
              places_.offset[static_cast<std::size_t>(unit)], at(unit).layout->padded_numel(),
              at(unit).reduce_dtype);
}

at::Tensor GradSink::partial_view(int unit) const {
  const at::Tensor& own = partials_[static_cast<std::size_t>(unit)];
  return own.defined() ? own
                       : view(partial_buffers_[next_partial_],
                              partial_places_.offset[static_cast<std::size_t>(unit)],
                              at(unit).slice_numel(), at(unit).dtype);
}

at::Tensor GradSink::spare_memory(int unit) const {
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.numel() >= at(unit).whole_bytes()) {
      return view(buffer, 0, at(unit).layout->padded_numel(), at(unit).dtype);
    }
  }
  return at::empty({at(unit).layout->padded_numel()},
                   at::TensorOptions(at(unit).dtype).device(at(unit).device));
}

// --- collecting ------------------------------------------------------------------------------

void GradSink::set_sync(GradientSync sync) {
  sync_ = sync;
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
    const at::Tensor waiting = deferred_[static_cast<std::size_t>(unit)].narrow(
        0, of.layout->offset(i), parameter.numel);
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
bool GradSink::prepare_shard(Unit& unit) {
  const bool has_grad = std::ranges::any_of(unit.parameters, [](const Parameter& parameter) {
    return parameter.shard.grad().defined();
  });
  for (Parameter& parameter : unit.parameters) {
    const at::Tensor& grad = parameter.shard.grad();
    if (!has_grad) {
      break;
    }
    if (!grad.defined()) {
      parameter.grad_shard.zero_();
    } else if (!grad.is_same(parameter.grad_shard)) {
      parameter.grad_shard.copy_(grad);
      parameter.shard.mutable_grad().reset();
      parameter.is_present = true;
    }
  }
  return has_grad;
}

void GradSink::start_inner(int unit, const at::Tensor& flat) {
  Unit& of = at(unit);
  const auto index = static_cast<std::size_t>(unit);
  const comm::Label label{unit, of.name};
  if (has_both_stages(of)) {
    works_[index] = of.placement.shard->reduce_scatter(
        partial_view(unit), flat, {.accumulate = has_partial_[index] != 0}, label);
  } else {
    const bool has_grad = prepare_shard(of);
    works_[index] = of.placement.shard->reduce_scatter(
        of.flat_grad_shard, flat, {.divisor = divisor_, .accumulate = has_grad}, label);
  }
  ++counters_.reduce_scatters;
  counters_.reduce_bytes += of.layout->total_numel() * Unit::itemsize_of(of.reduce_dtype);
  counters_.padding_bytes += of.padding() * Unit::itemsize_of(of.reduce_dtype);
}

/// `src`: what this rank has of the slices that the replicas have in common, [slice_numel].
std::unique_ptr<comm::Work> GradSink::start_outer(int unit, const at::Tensor& src) {
  Unit& of = at(unit);
  const bool has_grad = prepare_shard(of);
  const std::int64_t bytes = of.logical_numel(of.placement.give) *
                             static_cast<std::int64_t>(src.element_size());
  counters_.replica_bytes += of.placement.is_refreshed() ? bytes : 2 * bytes;
  ++counters_.replica_reductions;
  return of.placement.replicate->reduce_scatter(answered_grad(of), src,
                                                {.divisor = divisor_, .accumulate = has_grad},
                                                {unit, "replicas of " + of.name});
}

/// Where the sums of this rank's sub-slice go.
at::Tensor GradSink::answered_grad(const Unit& unit) {
  const std::int64_t numel = unit.layout->shard_numel();
  const Placement& placement = unit.placement;
  return unit.flat_grad_shard.narrow(0, (placement.answers_for - placement.own.first) * numel,
                                     numel);
}

/// Ends what is under way over the replicas; sums that all of them need are gathered next.
void GradSink::advance_outer() {
  std::vector<Outer> under_way = std::exchange(outer_, {});
  for (Outer& outer : under_way) {
    outer.work->wait();
    const Unit& unit = at(outer.unit);
    if (!outer.is_gathering && !unit.placement.is_refreshed()) {
      outer_.push_back({.unit = outer.unit,
                        .work = unit.placement.replicate->all_gather(
                            unit.flat_grad_shard, answered_grad(unit),
                            {outer.unit, "sums of the replicas of " + unit.name}),
                        .is_gathering = true});
    }
  }
}

void GradSink::start_reduce(int bundle, int buffer) {
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
      continue;
    }
    if (sync_ == GradientSync::kDeferReplicate) {
      has_partial_[index] = 1;
      has_deferred_ = true;
      continue;
    }
    outer_.push_back({.unit = unit, .work = start_outer(unit, partial_view(unit))});
    has_partial_[index] = 0;
  }
  // The reduce buffer is given back: what was read from it must have ended.
  const bool reads_buffer = at(bundles_.members(bundle).front()).placement.shard == nullptr;
  if (reads_buffer) {
    advance_outer();
  }
  next_partial_ = 1 - next_partial_;
}

void GradSink::hand_out() {
  while (!outer_.empty()) {
    advance_outer();
  }
  presence_.agree(units_, divisor_);
  has_deferred_ = false;
  for (Unit& unit : units_) {
    for (Parameter& parameter : unit.parameters) {
      const bool is_present = std::exchange(parameter.is_present, false);
      if (is_present && unit.trains && parameter.tensor.requires_grad() &&
          !parameter.shard.grad().defined()) {
        parameter.shard.mutable_grad() = parameter.grad_shard;
      }
    }
  }
}

void GradSink::drop_collected() {
  while (!outer_.empty()) {
    advance_outer();
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.fired = 0;
      parameter.is_present = parameter.is_present && has_partial_[unit] != 0;
    }
  }
}

void GradSink::zero() {
  has_deferred_ = false;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    has_partial_[unit] = 0;
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.is_present = parameter.is_deferred = false;
      parameter.shard.mutable_grad().reset();
    }
  }
}

void GradSink::start_over() {
  zero();
  outer_.clear();
  std::ranges::fill(buffer_of_, -1);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    works_[unit].reset();
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.fired = 0;
    }
  }
}

}  // namespace fsdp::engine
