// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/slice.hpp"

#include <ATen/ops/empty.h>

#include <utility>

#include "comm/tensor_at.hpp"
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

}  // namespace

Slice::Slice(const Unit& unit, int index, memory::Ledger& ledger, at::Tensor at_rest)
    : unit_(unit), index_(index), ledger_(ledger), at_rest_(std::move(at_rest)) {
  if (!at_rest_.defined()) {
    at_rest_ = zeros_at_home(unit, unit.rest_numel(), unit.param_dtype);
  }
  shard_ = unit.is_cast() ? zeros_at_home(unit, unit.shard_numel(), unit.dtype) : own_at_rest();
  const auto on_device = at::TensorOptions(unit.param_dtype).device(unit.device);
  if (unit.placement.secondary != nullptr) {
    secondary_ = at::empty({unit.numel_of(unit.placement.kept)}, on_device);
  }
  if (unit.is_offloaded() && unit.placement.is_resident()) {
    resident_ = at::empty({unit.slice_numel()}, on_device);
  }
  enter(1);
}

Slice::~Slice() { enter(-1); }

/// Enters what this holds, or strikes it out.
void Slice::enter(std::int64_t sign) {
  const auto change = [&](memory::Kind kind, std::int64_t bytes) {
    if (sign < 0) {
      ledger_.remove(kind, bytes);
    } else {
      ledger_.add(kind, bytes);
    }
  };
  change(memory::Kind::kShards, unit_.shard_bytes());
  change(memory::Kind::kLowPrecision, unit_.is_cast() ? unit_.rest_bytes() : 0);
  change(unit_.is_offloaded() ? memory::Kind::kOffloadHost : memory::Kind::kSecondary,
         unit_.is_cast() ? 0 : unit_.rest_bytes() - unit_.shard_bytes());
  change(memory::Kind::kSecondary, unit_.kept_bytes());
  change(memory::Kind::kOffloadDevice, unit_.resident_bytes());
}

/// What is at rest of own_part().
at::Tensor Slice::own_at_rest() const {
  return at_rest_.numel() == unit_.shard_numel() ? at_rest_ : own_part(unit_, at_rest_);
}

void* Slice::resident() const {
  return unit_.is_offloaded() ? resident_.data_ptr() : at_rest_.data_ptr();
}

Refreshed Slice::refresh(const at::Tensor& place) {
  const std::uint32_t version = shard_.unsafeGetTensorImpl()->version_counter().current_version();
  if (is_current_ && version_ == version) {
    return {};
  }
  is_current_ = true;
  version_ = version;
  if (unit_.is_cast()) {
    own_at_rest().copy_(shard_);
  }
  if (unit_.is_offloaded()) {
    refresh_on_device(unit_.placement.is_resident() ? resident_ : place);
  } else if (unit_.placement.is_refreshed()) {
    gather_replicas(at_rest_);
  }
  return {.was_cast = unit_.is_cast(),
          .was_gathered = unit_.placement.is_refreshed(),
          .was_sent = unit_.is_offloaded()};
}

/// What a new shard asks for where collectives and operators work in another memory.
void Slice::refresh_on_device(const at::Tensor& place) {
  const bool is_resident = unit_.placement.is_resident();
  if (is_resident || unit_.placement.is_refreshed()) {
    transfer(unit_, own_part(unit_, place), own_at_rest());
  }
  if (unit_.placement.is_refreshed()) {
    gather_replicas(place);
    if (!is_resident) {
      transfer(unit_, at_rest_, place);
    }
  }
}

/// Brings the replicas' parts into `slice`, which has this rank's own.
void Slice::gather_replicas(const at::Tensor& slice) const {
  unit_.placement.replicate
      ->all_gather(slice, own_part(unit_, slice), {index_, "new weights of " + unit_.name})
      ->wait();
}

bool Slice::keep_secondary(void* whole) {
  if (unit_.kept_bytes() == 0 || has_secondary_) {
    return false;
  }
  const SliceRun& kept = unit_.placement.kept;
  const std::int64_t offset =
      kept.first * unit_.layout->shard_numel() * Unit::itemsize_of(unit_.param_dtype);
  void* part = static_cast<char*>(whole) + offset;
  secondary_.copy_(
      comm::tensor_at(part, secondary_.numel(), secondary_.scalar_type(), secondary_.device()));
  has_secondary_ = true;
  return true;
}

GatherSource Slice::gather_source() const {
  return has_secondary_ ? GatherSource{unit_.placement.secondary, secondary_}
                        : GatherSource{unit_.placement.shard, at_rest_};
}

at::Tensor place_of_slice(const Unit& unit, const at::Tensor& whole) {
  return whole.narrow(0, unit.placement.give.first * unit.layout->shard_numel(),
                      unit.slice_numel());
}

at::Tensor own_slices(const Unit& unit, const at::Tensor& whole) {
  return whole.narrow(0, unit.placement.own.first * unit.layout->shard_numel(), unit.shard_numel());
}

}  // namespace fsdp::engine
