// SPDX-License-Identifier: Apache-2.0
/// What a gradient sink holds: gradient shards, reduce buffers, places for deferred gradients.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/tensor_at.hpp"
#include "engine/sink/grad_sink.hpp"
#include "engine/unit/home.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

GradSink::GradSink(const comm::Link& world, const ModuleLayout& layout,
                   const std::vector<FlatParts>& shards, memory::Ledger& ledger, Counters& counters)
    : world_(*world.transport),
      layout_(layout),
      shards_(shards),
      ledger_(ledger),
      counters_(counters),
      grads_(layout.units.size()),
      of_units_(layout.units.size()),
      presence_(*world.job, layout.units),
      buffer_of_(static_cast<std::size_t>(layout.bundles.count()), -1),
      reduced_(layout.device()) {
  for (int bundle = 0; bundle < layout.bundles.count(); ++bundle) {
    collected_.emplace_back(layout.device());
  }
  for (int unit = 0; unit < layout.count(); ++unit) {
    for (std::size_t i = 0; i < layout.at(unit).parameters.size(); ++i) {
      const bool requires_grad = layout.at(unit).parameters[i].tensor.requires_grad();
      of(unit).arrivals.push_back({.requires_grad = requires_grad});
      shards[static_cast<std::size_t>(unit)]
          .part(static_cast<int>(i))
          .set_requires_grad(requires_grad);
    }
  }
  if (layout.is_offloaded()) {
    home_ = std::make_unique<GradHome>(layout.units, layout.bundles, grads_);
  }
  if (!follow_requires_grad()) {
    make_buffers();  // nothing trains yet
    reserve_staging();
  }
}

GradSink::~GradSink() {
  for (OfUnit& unit : of_units_) {
    unit.work.reset();
  }
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    ledger_.remove(static_cast<memory::Kind>(kind), entered_[static_cast<memory::Kind>(kind)]);
  }
}

void GradSink::connect(std::weak_ptr<TouchTarget> target) {
  target_ = std::move(target);
  for (int unit = 0; unit < layout_.count(); ++unit) {
    if (grads(unit).is_defined()) {
      grads_[static_cast<std::size_t>(unit)].connect(target_, unit);
    }
  }
}

bool GradSink::follow_requires_grad() {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    for (int i = 0; i < at(unit).layout->parameters(); ++i) {
      follow_requires_grad(unit, i);
    }
    of(unit).trains = at(unit).is_trainable();
  }
  return make_room();
}

void GradSink::follow_requires_grad(int unit, int parameter) {
  const at::Tensor& tensor = at(unit).at(parameter).tensor;
  const at::Tensor& shard = shards(unit).part(parameter);
  bool& known = of(unit).arrivals[static_cast<std::size_t>(parameter)].requires_grad;
  if (tensor.requires_grad() != known || shard.requires_grad() != known) {
    known = !known;
    tensor.set_requires_grad(known);
    shard.set_requires_grad(known);
  }
}

void GradSink::enter(memory::Kind kind, std::int64_t bytes) {
  ledger_.add(kind, bytes);
  entered_[kind] += bytes;
}

bool GradSink::make_room() {
  bool is_new = false;
  for (int unit = 0; unit < layout_.count(); ++unit) {
    if (!trains(unit) || grads(unit).is_defined()) {
      continue;
    }
    is_new = true;
    FlatParts& made = grads_[static_cast<std::size_t>(unit)];
    made = FlatParts(at(unit), zeros_at_home(at(unit), at(unit).shard_numel(), at(unit).dtype),
                     StorageRole::kGradShard);
    made.connect(target_, unit);
    enter(memory::Kind::kGradShards, at(unit).shard_bytes());
  }
  if (is_new) {
    make_buffers();
    make_deferred();
    reserve_staging();
  }
  return is_new;
}

void GradSink::make_buffers() {
  places_ = place(layout_.units, layout_.bundles, [&](const Unit& unit, std::size_t index) {
    return grads_[index].is_defined() ? unit.reduced_bytes() : 0;
  });
  ledger_.remove(memory::Kind::kReduceBuffers,
                 std::exchange(entered_[memory::Kind::kReduceBuffers], 0));
  buffers_.clear();
  buffer_uses_.clear();
  const c10::Device device = layout_.device();
  const std::vector<int>& own = layout_.schedule.own_buffers;
  const auto allocate = [&](std::int64_t bytes) {
    buffer_uses_.emplace_back(device);
    // In memory that peers read in place, where there is such: reducing then copies nothing.
    buffers_.push_back(device.is_cpu()
                           ? world_.buffer(bytes)
                           : at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    enter(memory::Kind::kReduceBuffers, bytes);
  };
  const auto is_in_ring = [&](int bundle) { return std::ranges::find(own, bundle) == own.end(); };
  for (int buffer = 0; buffer < layout_.schedule.reduce_buffers; ++buffer) {
    allocate(places_.largest(is_in_ring));
  }
  for (int bundle : own) {
    allocate(places_.bytes[static_cast<std::size_t>(bundle)]);
  }
  partial_places_ = place(layout_.units, layout_.bundles, [&](const Unit& unit, std::size_t index) {
    const bool has_partial = unit.placement.has_both_stages() && grads_[index].is_defined();
    return has_partial ? unit.slice_numel() * unit.itemsize() : 0;
  });
  const std::int64_t partial_bytes = partial_places_.largest([](int) { return true; });
  for (at::Tensor& buffer : partial_buffers_) {
    buffer = at::empty({partial_bytes}, at::TensorOptions(at::kByte).device(device));
    enter(memory::Kind::kReduceBuffers, partial_bytes);
  }
  if (home_ != nullptr) {
    const std::int64_t bytes = home_->make_areas();
    for (const memory::Kind kind : {memory::Kind::kOffloadDevice, memory::Kind::kOffloadHost}) {
      ledger_.remove(kind, std::exchange(entered_[kind], 0));
      enter(kind, bytes);
    }
  }
}

/// What the transports need beyond that, by group of ranks.
void GradSink::reserve_staging() {
  const auto reserve = [&](comm::Transport* group, std::int64_t src_bytes, int in_flight) {
    const auto known = staging_.find(group);
    if (group != nullptr && (known == staging_.end() || known->second < src_bytes)) {
      staging_[group] = src_bytes;
      enter(memory::Kind::kStaging, group->reserve_staging(src_bytes, in_flight));
    }
  };
  std::map<comm::Transport*, std::int64_t> inner, outer;
  int in_flight = 1;
  for (int bundle = 0; bundle < layout_.bundles.count(); ++bundle) {
    int of_bundle = 0;
    for (int unit : layout_.members(bundle)) {
      const Unit& of = at(unit);
      const bool has_room = grads(unit).is_defined();
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
  for (int unit = 0; unit < layout_.count(); ++unit) {
    const Unit& laid_out = at(unit);
    const auto make = [&](at::Tensor& tensor, std::int64_t numel) {
      if (!tensor.defined()) {
        tensor = at::empty({numel}, at::TensorOptions(laid_out.dtype).device(laid_out.device));
        enter(memory::Kind::kDeferred, numel * laid_out.itemsize());
      }
    };
    if (!grads(unit).is_defined() || sync_ == GradientSync::kEveryBackward) {
      continue;
    }
    if (defers(laid_out.bundle)) {
      make(of(unit).deferred, laid_out.layout->padded_numel());
    } else if (laid_out.placement.has_both_stages()) {
      make(of(unit).partial, laid_out.slice_numel());
    }
  }
}

namespace {
/// `numel` elements at `offset` of a byte tensor.
at::Tensor view(const at::Tensor& bytes, std::int64_t offset, std::int64_t numel,
                at::ScalarType dtype) {
  FSDP_ASSERT(bytes.numel() >= offset + numel * Unit::itemsize_of(dtype), "a buffer of ",
              bytes.numel(), " bytes is too small for ", numel, " elements at byte ", offset);
  return comm::tensor_at(static_cast<char*>(bytes.data_ptr()) + offset, numel, dtype,
                         bytes.device());
}
}  // namespace

at::Tensor GradSink::buffer_view(int unit, int buffer) const {
  return view(buffers_[static_cast<std::size_t>(buffer)],
              places_.offset[static_cast<std::size_t>(unit)], at(unit).layout->padded_numel(),
              at(unit).reduce_dtype);
}

at::Tensor GradSink::partial_view(int unit) const {
  const at::Tensor& own = of(unit).partial;
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

}  // namespace fsdp::engine
