// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/full_scope.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "engine/unit/home.hpp"
#include "engine/unit/slice.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Makes `whole` of what each rank's optimizer owns, over the replicas first where they own parts
/// of one slice. Names of its own, lest it pass for the same unit's gather in a peer's forward.
void gather_shards(const Unit& unit, const at::Tensor& shard, const at::Tensor& whole) {
  const comm::Label label{.name = "full_parameters: " + unit.name};
  at::Tensor slice = shard;
  if (unit.is_offloaded()) {
    slice = own_slices(unit, whole);
    transfer(unit, slice, shard);
  }
  if (unit.placement.is_refreshed()) {
    const at::Tensor own = std::exchange(
        slice, unit.is_offloaded() ? place_of_slice(unit, whole)
                                   : at::empty({unit.slice_numel()}, whole.options()));
    unit.placement.replicate->all_gather(slice, own, label)->wait();
  }
  if (unit.placement.shard == nullptr) {
    if (!slice.is_alias_of(whole)) {
      whole.copy_(slice);
    }
  } else {
    unit.placement.shard->all_gather(whole, slice, label)->wait();
  }
}

}  // namespace

std::uint64_t FullScope::begin(bool writeback) {
  if (depth_ > 0) {
    FSDP_CHECK(!writeback || is_written_back_, ErrorCode::kInvalidArgument,
               "[full_parameters] a scope with writeback inside one without it");
    ++depth_;
    return scope_;
  }
  executor_.reshard();
  views_.resize(layout_.units.size());
  health_.together([&] {
    for (int index = 0; index < layout_.count(); ++index) {
      const Unit& unit = layout_.at(index);
      at::Tensor whole = at::empty({unit.layout->padded_numel()},
                                   at::TensorOptions(unit.dtype).device(unit.device));
      ledger_.add(memory::Kind::kFullScope, unit.whole_bytes());
      bytes_ += unit.whole_bytes();
      gather_shards(unit, residency_.shards()[static_cast<std::size_t>(index)].flat(), whole);
      if (unit.placement.shard != nullptr) {
        count_gather(counters_, unit, unit.dtype);
      }
      show(index, whole);
      whole_.push_back(std::move(whole));
    }
  });
  executor_.hold();
  is_written_back_ = writeback;
  depth_ = 1;
  return ++scope_;
}

void FullScope::show(int index, const at::Tensor& whole) {
  const Unit& unit = layout_.at(index);
  if (!unit.is_cast()) {
    residency_.install(index, whole.data_ptr());
    return;
  }
  std::unique_ptr<WeightViews>& views = views_[static_cast<std::size_t>(index)];
  views = std::make_unique<WeightViews>(unit, unit.dtype, [](const Parameter& parameter) {
    return "parameter \"" + parameter.name +
           "\" was whole in a full_parameters() scope that is "
           "over";
  });
  views->install(whole.data_ptr());
  views->connect(target_, index);
  residency_.show(index, *views);
}

void FullScope::end(std::uint64_t scope) {
  if (depth_ == 0 || scope != scope_ || --depth_ > 0) {
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  for (int index = 0; index < layout_.count(); ++index) {
    if (is_written_back_) {
      const Unit& unit = layout_.at(index);
      const FlatParts& shard = residency_.shards()[static_cast<std::size_t>(index)];
      transfer(unit, shard.flat(), own_slices(unit, whole_[static_cast<std::size_t>(index)]));
      shard.bump_version();
    }
    residency_.show_again(index);
    residency_.put_away(index);
  }
  executor_.unhold();
  clear();
}

void FullScope::start_over() {
  depth_ = 0;
  clear();
}

void FullScope::clear() {
  for (const std::unique_ptr<WeightViews>& views : views_) {
    if (views != nullptr) {
      views->remove();
    }
  }
  views_.clear();
  whole_.clear();
  ledger_.remove(memory::Kind::kFullScope, std::exchange(bytes_, 0));
  is_written_back_ = false;
}

}  // namespace fsdp::engine
