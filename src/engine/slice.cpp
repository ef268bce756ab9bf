// SPDX-License-Identifier: Apache-2.0
#include "engine/slice.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace fsdp::engine {

namespace {

/// The part of the slice that this rank's optimizer determines.
at::Tensor own_part(const Unit& unit) {
  const Placement& placement = unit.placement;
  const std::int64_t before =
      (placement.own.first - placement.give.first) * unit.layout->shard_numel();
  return unit.slice.narrow(0, before, unit.shard_numel());
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
  change(ledger, memory::Kind::kLowPrecision, unit.is_cast() ? sign * unit.slice_bytes() : 0);
  const std::int64_t of_replicas = unit.is_cast() ? 0 : unit.slice_bytes() - unit.shard_bytes();
  change(ledger, memory::Kind::kSecondary, sign * (of_replicas + unit.kept_bytes()));
}

}  // namespace

void set_slice(Unit& unit, at::Tensor slice) {
  unit.slice = std::move(slice);
  unit.flat_shard = unit.is_cast() ? at::zeros({unit.shard_numel()},
                                               at::TensorOptions(unit.dtype).device(unit.device))
                                   : own_part(unit);
  unit.is_slice_current = false;
  if (unit.placement.secondary != nullptr) {
    unit.secondary = at::empty({unit.numel_of(unit.placement.kept)}, unit.slice.options());
  }
}

void enter_slice(memory::Ledger& ledger, const Unit& unit) { change_all(ledger, unit, 1); }
void strike_slice(memory::Ledger& ledger, const Unit& unit) { change_all(ledger, unit, -1); }

Refreshed refresh_slice(Unit& unit, int index) {
  const std::uint32_t version = unit.shard_version();
  if (unit.is_slice_current && unit.slice_version == version) {
    return {};
  }
  unit.is_slice_current = true;
  unit.slice_version = version;
  const at::Tensor own = own_part(unit);
  if (unit.is_cast()) {
    own.copy_(unit.flat_shard);
  }
  if (unit.placement.is_refreshed()) {
    unit.placement.replicate->all_gather(unit.slice, own, {index, "new weights of " + unit.name})
        ->wait();
  }
  return {.was_cast = unit.is_cast(), .was_gathered = unit.placement.is_refreshed()};
}

GatherSource gather_source(const Unit& unit) {
  return unit.has_secondary ? GatherSource{unit.placement.secondary, unit.secondary}
                            : GatherSource{unit.placement.shard, unit.slice};
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
