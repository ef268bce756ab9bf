// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/residency.hpp"

#include <algorithm>
#include <utility>

#include "comm/tensor_at.hpp"
#include "engine/unit/home.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::engine {

void count_gather(Counters& counters, const Unit& unit, at::ScalarType dtype) {
  ++counters.gathers;
  counters.gather_bytes += unit.layout->total_numel() * Unit::itemsize_of(dtype);
  counters.padding_bytes += unit.padding() * Unit::itemsize_of(dtype);
}

Residency::Residency(const ModuleLayout& layout, memory::Ledger& ledger, Counters& counters,
                     Health& health, const Events& events, comm::Job& world, bool poisons)
    : layout_(layout),
      counters_(counters),
      health_(health),
      events_(events),
      world_(world),
      poisons_(poisons),
      store_(layout.is_aliased
                 ? make_aliased_store(layout.units)
                 : make_slot_store(layout.units, layout.bundles, ledger,
                                   {.slots = layout.schedule.slots, .kept = layout.schedule.kept})),
      of_units_(layout.units.size()),
      uses_(make_uses(layout)) {
  std::vector<at::Tensor> slices = store_->make_slices();
  shards_.reserve(layout.units.size());
  views_.reserve(layout.units.size());
  for (int index = 0; index < layout.count(); ++index) {
    const Unit& unit = layout.at(index);
    slices_.emplace_back(unit, index, ledger, std::move(slices[static_cast<std::size_t>(index)]));
    shards_.emplace_back(unit, slice(index).shard(), StorageRole::kShard);
    views_.emplace_back(unit, unit.param_dtype, [&](const Parameter& parameter) {
      return "parameter \"" + parameter.name + "\" is sharded and its unit \"" + unit.name +
             "\" is not gathered now. Operators gather it by themselves; for raw pointers and "
             "torch::save hold fsdp::Sharded::full_parameters() on all ranks";
    });
    of(index).taken.resize(unit.parameters.size());
    of(index).shown = &views(index);
  }
}

Residency::~Residency() {
  for (WeightViews& views : views_) {
    views.set_freed_message([](const Parameter& parameter) {
      return "parameter \"" + parameter.name +
             "\" was sharded and its fsdp::Sharded is gone: keep the Sharded alive as long as the "
             "module is used";
    });
  }
}

void Residency::connect(const std::weak_ptr<TouchTarget>& target) {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    shards_[static_cast<std::size_t>(unit)].connect(target, unit);
    views(unit).connect(target, unit);
  }
}

void Residency::take(int index, const at::Tensor& whole) {
  const Unit& unit = layout_.at(index);
  const FlatParts& shard = shards_[static_cast<std::size_t>(index)];
  transfer(unit, shard.flat(), own_slices(unit, whole));
  of(index).seen_version = shard.version();
  views(index).show();
  put_away(index);
}

// --- the schedule's actions ------------------------------------------------------------------

Residency::Uses Residency::make_uses(const ModuleLayout& layout) {
  const auto make = [&](std::size_t count) {
    std::vector<StreamUses> uses;
    for (std::size_t i = 0; i < count; ++i) {
      uses.emplace_back(layout.device());
    }
    return uses;
  };
  return {
      .gathered = make(layout.units.size()),
      .written = make(layout.units.size()),
      .slots = make(static_cast<std::size_t>(layout.schedule.slots) + layout.schedule.kept.size()),
      .slot_of = std::vector<int>(layout.units.size(), -1)};
}

void Residency::use_on_stream(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  uses_.written[index].come_after();
  uses_.gathered[index].come_after();
  if (uses_.slot_of[index] >= 0) {
    uses_.slots[static_cast<std::size_t>(uses_.slot_of[index])].note();
  }
}

void Residency::start_gather(int bundle, int slot) {
  StreamUses& readers = uses_.slots[static_cast<std::size_t>(slot)];
  readers.come_after();
  readers.clear();
  for (int index : layout_.members(bundle)) {
    renew_slice(index, slot);
    uses_.written[static_cast<std::size_t>(index)].come_after();
    uses_.slot_of[static_cast<std::size_t>(index)] = slot;
    counters_.secondary_gathers += slice(index).has_secondary() ? 1 : 0;
    store_->start(index, slot, slice(index));
    count_gather(counters_, layout_.at(index), layout_.at(index).param_dtype);
    emit_gather(trace::EventKind::kGatherStart, index, slot);
  }
}

void Residency::wait_gather(int bundle, int slot, bool keeps_secondary) {
  for (int index : layout_.members(bundle)) {
    emit_gather(trace::EventKind::kGatherWaitBegin, index, slot);
    store_->wait(index);
    void* whole = store_->address(index, slot);
    views(index).install(whole);
    if (keeps_secondary && slice(index).keep_secondary(whole)) {
      uses_.written[static_cast<std::size_t>(index)].mark();
    }
    uses_.gathered[static_cast<std::size_t>(index)].clear();
    uses_.gathered[static_cast<std::size_t>(index)].mark();
    emit_gather(trace::EventKind::kGatherWaitEnd, index, slot);
  }
}

void Residency::free(int bundle, int slot) {
  for (int index : layout_.members(bundle)) {
    put_away(index);
    uses_.slot_of[static_cast<std::size_t>(index)] = -1;
    uses_.gathered[static_cast<std::size_t>(index)].clear();
    store_->release(index, slot, poisons_);
    events_.emit(trace::EventKind::kFree, index, slot);
  }
}

void Residency::renew_slice(int index, int slot) {
  const Unit& unit = layout_.at(index);
  at::Tensor place;
  if (unit.is_offloaded() && !unit.placement.is_resident()) {
    place = place_of_slice(
        unit, comm::tensor_at(store_->address(index, slot), unit.layout->padded_numel(),
                              unit.param_dtype, unit.device));
  }
  const Refreshed refreshed = slice(index).refresh(place);
  if (refreshed.was_written()) {
    uses_.written[static_cast<std::size_t>(index)].clear();
    uses_.written[static_cast<std::size_t>(index)].mark();
  }
  counters_.casts += refreshed.was_cast ? 1 : 0;
  if (refreshed.was_gathered) {
    ++counters_.refreshes;
    counters_.refresh_bytes +=
        unit.logical_numel(unit.placement.give) * Unit::itemsize_of(unit.param_dtype);
  }
}

void Residency::emit_gather(trace::EventKind kind, int unit, int slot) {
  if (events_.are_observed()) {
    events_.emit(kind, unit, slot, store_->address(unit, slot), layout_.at(unit).gathered_bytes());
  }
}

// --- the module's tensors --------------------------------------------------------------------

void Residency::check_in_shards(const char* where) const {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      check_in_shards(unit, i, where);
    }
  }
}

void Residency::check_in_shards(int unit, int parameter, const char* where) const {
  FSDP_CHECK(
      is_shown(unit, parameter), ErrorCode::kInvalidArgument, "[", where, "] parameter \"",
      layout_.at(unit).at(parameter).name,
      "\" no longer lives in its unit's shards: module->to(), half(), torch::load() or "
      "set_data() after fully_shard() takes weights out. Convert the module before sharding it; "
      "load into it inside full_parameters(/*writeback=*/true), which hands replaced weights "
      "of the same type to the shards");
}

void Residency::show(int unit, const WeightViews& elsewhere) {
  of(unit).shown = &elsewhere;
  elsewhere.show();
}

void Residency::show_again(int unit) {
  if (std::exchange(of(unit).shown, &views(unit)) != &views(unit)) {
    views(unit).show();
  }
}

void Residency::show_replaced(int unit) {
  const int parameters = layout_.at(unit).layout->parameters();
  for (int i = 0; i < parameters; ++i) {
    if (!is_shown(unit, i)) {
      of(unit).shown->show();
      return;
    }
  }
}

void Residency::install(int unit, void* whole) { views(unit).install(whole); }

/// Where weights are while their unit is not gathered: nowhere, or in this rank's own memory.
void Residency::put_away(int unit) {
  if (layout_.at(unit).placement.is_resident()) {
    views(unit).install(slice(unit).resident());
  } else {
    views(unit).remove();
  }
}

void Residency::note_taken(std::span<const Hit> hits, bool records_graph) {
  for (const Hit& hit : hits) {
    Taken& of = taken(hit.unit, hit.parameter);
    of.ever = of.this_step = true;
    of.recorded += records_graph ? 1 : 0;
  }
}

void Residency::check_all_taken() const {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      const Parameter& parameter = layout_.at(unit).at(i);
      FSDP_CHECK(
          taken(unit, i).ever || !parameter.has_no_member || !parameter.tensor.requires_grad(),
          ErrorCode::kInvalidArgument, "[backward] parameter \"", parameter.name,
          "\" is registered but no operator took it and no member holds it: was another "
          "tensor assigned to the member? That does not tie weights. Use fsdp::tie_weights(), or "
          "remove the registered parameter");
    }
  }
}

std::vector<ModuleLayout::Index> Residency::left_out(bool ever) const {
  std::vector<ModuleLayout::Index> left_out;
  for (int unit = 0; unit < layout_.count(); ++unit) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      const Taken& of = taken(unit, i);
      const bool is_left_out = ever ? !of.ever : of.last_step && !of.this_step;
      if (is_left_out && layout_.at(unit).at(i).tensor.requires_grad()) {
        left_out.push_back({.unit = unit, .parameter = i});
      }
    }
  }
  return left_out;
}

void Residency::tell_of_stand_ins(std::span<const ModuleLayout::Index> left_out, bool tells) {
  if (left_out.empty()) {
    return;
  }
  // Steps of another number of forwards, say, change the counts of more weights than those.
  std::vector<ModuleLayout::Index> changed;
  for (const ModuleLayout::Index& index : layout_.ordered_parameters()) {
    const Taken& of = taken(index.unit, index.parameter);
    if (of.before > 0 && of.recorded > 0 && of.recorded != of.before) {
      changed.push_back(index);
    }
  }
  std::string text;
  for (const ModuleLayout::Index& index : left_out) {
    const Parameter& missing = layout_.at(index.unit).at(index.parameter);
    Taken& of = taken(index.unit, index.parameter);
    const auto other = std::ranges::find_if(changed, [&](const ModuleLayout::Index& candidate) {
      const Taken& by = taken(candidate.unit, candidate.parameter);
      return by.recorded == by.before + of.before &&
             layout_.at(candidate.unit).at(candidate.parameter).sizes == missing.sizes;
    });
    if (of.before > 0 && !of.is_told && other != changed.end() &&
        changed.size() <= left_out.size() && !layout_.at(index.unit).is_optional) {
      of.is_told = true;
      text += (text.empty() ? "no operator took \"" : ", nor \"") + missing.name + "\", and \"" +
              layout_.at(other->unit).at(other->parameter).name + "\" was taken in its place";
    }
  }
  if (text.empty() || !tells) {
    return;
  }
  base::log(
      base::LogLevel::kWarn, text,
      " in this step. Was a tensor assigned to a member after fully_shard()? That does not tie "
      "weights: the one that was there stays in shards and checkpoints, untrained. Use "
      "tie_weights() before fully_shard(). A module that chooses its layers anew in each step "
      "may go on");
}

void Residency::end_step() {
  for (OfUnit& unit : of_units_) {
    for (Taken& taken : unit.taken) {
      taken.last_step = std::exchange(taken.this_step, false);
      taken.before = std::exchange(taken.recorded, 0);
    }
  }
}

// --- changes of shards -----------------------------------------------------------------------

void Residency::announce_write(int unit) {
  if (is_read_since_fence_ && store_->needs_fence() && !layout_.at(unit).placement.is_resident()) {
    // Peers may still read this shard in place: operators that ran after the last fence.
    health_.together(
        [&] { world_.barrier({.name = "all ranks are done with the shared weights"}); });
    note_fence();
  }
  shards_[static_cast<std::size_t>(unit)].bump_version();
  if (!of(unit).was_in_forward && !of(unit).were_weights_bumped) {
    bump_weights(unit);
  }
}

void Residency::bring_home() {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    const FlatParts& shard = shards_[static_cast<std::size_t>(unit)];
    if (shard.has_strayed(layout_.at(unit))) {
      announce_write(unit);
      shard.bring_home(layout_.at(unit));
    }
  }
}

/// A refill does not bump version counters by itself: graphs recorded with the old weights must
/// learn of it.
void Residency::bump_weights(int unit) {
  for (const Parameter& parameter : layout_.at(unit).parameters) {
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  of(unit).were_weights_bumped = true;
}

bool Residency::refresh(int index) {
  OfUnit& unit = of(index);
  const std::uint32_t version = shards_[static_cast<std::size_t>(index)].version();
  if (layout_.at(index).placement.is_resident()) {
    renew_slice(index);  // there is no gather that would do it
  }
  if (version == unit.seen_version) {
    return false;
  }
  if (!std::exchange(unit.were_weights_bumped, false)) {
    bump_weights(index);
    unit.were_weights_bumped = false;
  }
  unit.seen_version = version;
  unit.was_in_forward = false;
  slice(index).drop_secondary();
  return true;
}

void Residency::check_unchanged_since_forward(int index) const {
  const OfUnit& unit = of(index);
  const std::uint32_t version = shards_[static_cast<std::size_t>(index)].version();
  FSDP_CHECK(!unit.was_in_forward || version == unit.seen_version, ErrorCode::kInvalidArgument,
             "[touch] the shards of unit \"", layout_.at(index).name,
             "\" were changed between its forward and its backward (version ", unit.seen_version,
             " then, ", version,
             " now): gradients would be those of other weights. Step the optimizer after backward");
}

void Residency::forget_forwards() {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    of(unit).was_in_forward = false;
    slice(unit).drop_secondary();
  }
}

void Residency::start_over() {
  store_->drop_works();
  forget_forwards();
  for (int unit = 0; unit < layout_.count(); ++unit) {
    show_again(unit);
    put_away(unit);
    slice(unit).expire();
    uses_.slot_of[static_cast<std::size_t>(unit)] = -1;
  }
  note_fence();  // recover() was one
}

}  // namespace fsdp::engine
