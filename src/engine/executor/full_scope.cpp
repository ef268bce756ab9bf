// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/full_scope.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <sstream>
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

void FullScope::expect_other(ModuleLayout::Index weight) {
  if (depth_ > 0) {
    expected_.push_back(weight);
  }
}

void FullScope::adopt() {
  if (expected_.empty()) {
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  for (const ModuleLayout::Index& weight : expected_) {
    if (!residency_.is_shown(weight.unit, weight.parameter)) {
      adopt(weight.unit);
    }
  }
  expected_.clear();
}

/// See NOTE [weights replaced inside of a scope].
void FullScope::adopt(int index) {
  const Unit& unit = layout_.at(index);
  const auto describe = [](at::ScalarType type, at::IntArrayRef sizes, c10::Device device) {
    std::ostringstream text;
    text << c10::toString(type) << " " << sizes << " on " << device;
    return text.str();
  };
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    if (residency_.is_shown(index, i)) {
      continue;
    }
    const Parameter& parameter = unit.at(i);
    const at::Tensor& now = parameter.tensor;
    FSDP_CHECK(
        is_written_back_, ErrorCode::kInvalidArgument, "[full_parameters] \"", parameter.name,
        "\" was replaced (by torch::load, to or set_data) inside a scope that does not write "
        "back: use full_parameters(/*writeback=*/true) on all ranks");
    FSDP_CHECK(now.sizes() == at::IntArrayRef(parameter.sizes) && now.scalar_type() == unit.dtype &&
                   now.device() == unit.device && now.layout() == c10::kStrided,
               ErrorCode::kInvalidArgument, "[full_parameters] \"", parameter.name,
               "\" was replaced by ", describe(now.scalar_type(), now.sizes(), now.device()),
               ", and its shards hold ", describe(unit.dtype, parameter.sizes, unit.device),
               ": nothing of this scope is written back. Convert what you load before; a module is "
               "converted before fully_shard()");
    whole_[static_cast<std::size_t>(index)]
        .narrow(0, unit.layout->offset(i), parameter.numel)
        .as_strided(parameter.sizes, parameter.strides)
        .copy_(now);
  }
  residency_.show_replaced(index);
}

void FullScope::check() {
  if (refusal_ != nullptr) {
    std::rethrow_exception(std::exchange(refusal_, nullptr));
  }
}

void FullScope::check_takes_shards(int unit) const {
  FSDP_CHECK(depth_ == 0, ErrorCode::kInvalidArgument, "[full_parameters] the shards of unit \"",
             layout_.at(unit).name, "\" are about to change inside a scope, ",
             is_written_back_
                 ? "whose end would write the weights that it began with over the change"
                 : "which would show the weights that it began with",
             ". Leave it before an optimizer steps, averages are swapped or shards are loaded");
}

void FullScope::end(std::uint64_t scope) {
  if (depth_ == 0 || scope != scope_ || depth_-- > 1) {
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  try {
    for (int unit = 0; unit < layout_.count(); ++unit) {
      adopt(unit);
    }
  } catch (...) {
    refusal_ = std::current_exception();
    is_written_back_ = false;
  }
  for (int index = 0; index < layout_.count(); ++index) {
    if (is_written_back_) {
      const Unit& unit = layout_.at(index);
      const FlatParts& shard = residency_.shards()[static_cast<std::size_t>(index)];
      transfer(unit, shard.flat(), own_slices(unit, whole_[static_cast<std::size_t>(index)]));
      shard.bump_version();
    }
    residency_.show_again(index);
    residency_.show_replaced(index);
    residency_.put_away(index);
  }
  executor_.unhold();
  clear();
}

void FullScope::start_over() {
  for (int unit = 0; depth_ > 0 && unit < layout_.count(); ++unit) {
    residency_.show_replaced(unit);
  }
  depth_ = 0;
  refusal_ = nullptr;
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
  expected_.clear();
  ledger_.remove(memory::Kind::kFullScope, std::exchange(bytes_, 0));
  is_written_back_ = false;
}

}  // namespace fsdp::engine
