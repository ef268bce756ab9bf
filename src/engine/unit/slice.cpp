// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/slice.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "engine/unit/home.hpp"

namespace fsdp::engine {

namespace {

/// The part of a [slice_numel()] that this rank's optimizer determines.
at::Tensor own_part(const Unit& unit, const at::Tensor& slice) {
  const Placement& placement = unit.placement;
  const std::int64_t before =
      (placement.own.first - placement.give.first) * unit.layout->shard_numel();
  return slice.narrow(0, before, unit.shard_numel());
}

/// The same of what is at rest.
at::Tensor own_at_rest(const Unit& unit) {
  return unit.slice.numel() == unit.shard_numel() ? unit.slice : own_part(unit, unit.slice);
}

/// Brings the replicas' parts into `slice`, which has this rank's own.
void gather_replicas(const Unit& unit, int index, const at::Tensor& slice) {
  unit.placement.replicate
      ->all_gather(slice, own_part(unit, slice), {index, "new weights of " + unit.name})
      ->wait();
}

/// What a new shard asks for where collectives and operators work in another memory.
void refresh_on_device(Unit& unit, int index, const at::Tensor& place) {
  const bool is_resident = unit.placement.is_resident();
  if (is_resident || unit.placement.is_refreshed()) {
    transfer(unit, own_part(unit, place), own_at_rest(unit));
  }
  if (unit.placement.is_refreshed()) {
    gather_replicas(unit, index, place);
    if (!is_resident) {
      transfer(unit, unit.slice, place);
    }
  }
}

/// Enters bytes, or strikes them out when they are negative.
void change(memory::Ledger& ledger, memory::Kind kind, std::int64_t bytes) {
  if (bytes < 0) {
    ledger.remove(kind, -bytes);
  } else {
    ledger.add(kind, bytes);
  }
}

void change_all(memory::Ledger& ledger, const Unit& unit, std::int64_t sign) {
  change(ledger, memory::Kind::kShards, sign * unit.shard_bytes());
  change(ledger, memory::Kind::kLowPrecision, unit.is_cast() ? sign * unit.rest_bytes() : 0);
  const std::int64_t of_replicas = unit.is_cast() ? 0 : unit.rest_bytes() - unit.shard_bytes();
  change(ledger, unit.is_offloaded() ? memory::Kind::kOffloadHost : memory::Kind::kSecondary,
         sign * of_replicas);
  change(ledger, memory::Kind::kSecondary, sign * unit.kept_bytes());
  change(ledger, memory::Kind::kOffloadDevice, sign * unit.resident_bytes());
}

}  // namespace

void set_slice(Unit& unit, at::Tensor slice) {
  unit.slice = std::move(slice);
  unit.flat_shard =
      unit.is_cast() ? zeros_at_home(unit, unit.shard_numel(), unit.dtype) : own_at_rest(unit);
  unit.is_slice_current = false;
  const auto on_device = at::TensorOptions(unit.param_dtype).device(unit.device);
  if (unit.placement.secondary != nullptr) {
    unit.secondary = at::empty({unit.numel_of(unit.placement.kept)}, on_device);
  }
  if (unit.is_offloaded() && unit.placement.is_resident()) {
    unit.resident = at::empty({unit.slice_numel()}, on_device);
  }
}

void make_slice(Unit& unit) {
  set_slice(unit, zeros_at_home(unit, unit.rest_numel(), unit.param_dtype));
}

void enter_slice(memory::Ledger& ledger, const Unit& unit) { change_all(ledger, unit, 1); }
void strike_slice(memory::Ledger& ledger, const Unit& unit) { change_all(ledger, unit, -1); }

Refreshed refresh_slice(Unit& unit, int index, const at::Tensor& place) {
  const std::uint32_t version = unit.shard_version();
  if (unit.is_slice_current && unit.slice_version == version) {
    return {};
  }
  unit.is_slice_current = true;
  unit.slice_version = version;
  if (unit.is_cast()) {
    own_at_rest(unit).copy_(unit.flat_shard);
  }
  if (unit.is_offloaded()) {
    refresh_on_device(unit, index, unit.placement.is_resident() ? unit.resident : place);
  } else if (unit.placement.is_refreshed()) {
    gather_replicas(unit, index, unit.slice);
  }
  return {.was_cast = unit.is_cast(), .was_gathered = unit.placement.is_refreshed()};
}

GatherSource gather_source(const Unit& unit) {
  return unit.has_secondary ? GatherSource{unit.placement.secondary, unit.secondary}
                            : GatherSource{unit.placement.shard, unit.slice};
}

at::Tensor place_of_slice(const Unit& unit, const at::Tensor& whole) {
  return whole.narrow(0, unit.placement.give.first * unit.layout->shard_numel(),
                      unit.slice_numel());
}

at::Tensor own_slices(const Unit& unit, const at::Tensor& whole) {
  return whole.narrow(0, unit.placement.own.first * unit.layout->shard_numel(), unit.shard_numel());
}

void keep_secondary(Unit& unit, void* whole) {
  if (unit.kept_bytes() == 0 || unit.has_secondary) {
    return;
  }
  const SliceRun& kept = unit.placement.kept;
  const std::int64_t offset =
      kept.first * unit.layout->shard_numel() * Unit::itemsize_of(unit.param_dtype);
  void* part = static_cast<char*>(whole) + offset;
  unit.secondary.copy_(at::from_blob(part, {unit.secondary.numel()}, unit.secondary.options()));
  unit.has_secondary = true;
}

}  // namespace fsdp::engine
