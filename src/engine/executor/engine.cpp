// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/engine.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/touch/backward.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

using schedule::Action;
using schedule::Pass;

// --- touches ---------------------------------------------------------------------------------

void Engine::touch(std::span<const int> units, std::span<const Hit> hits, const char* op,
                   std::uint64_t signature) {
  std::lock_guard lock(mutex_);
  const bool records_graph = c10::GradMode::is_enabled();
  c10::NoGradGuard no_grad;
  check_usable();
  recover_from_dead_backward();
  for (const Hit& hit : hits) {
    FSDP_CHECK(
        !hit.is_write || (full_depth_ > 0 && full_writeback_), ErrorCode::kInvalidArgument,
        "[touch] ", op, " writes ", describe(hit),
        ", which is a gathered copy that is about to be freed: change the shards that "
        "sharded.parameters() returns, or edit inside full_parameters(/*writeback=*/true) on "
        "all ranks");
    at(hit.unit).parameters[static_cast<std::size_t>(hit.parameter)].was_touched = true;
  }
  FSDP_CHECK(!at::autocast::is_autocast_enabled(at(units.front()).device.type()),
             ErrorCode::kUnsupported, "[touch] ", op, " takes ", describe(hits.front()),
             " under autocast, whose cache keeps a cast copy of every weight alive after its unit "
             "was freed: the memory promise would not hold. Switch autocast off around the model");
  const bool in_backward = current_graph_task() >= 0 || is_backward_open_;
  Pass pass = Pass::kBackward;
  if (in_backward) {
    ensure_backward();
  } else {
    check_before_forward();
    pass = records_graph ? Pass::kForward : Pass::kEvaluation;
    if (pass == Pass::kForward) {
      check_loss_scaled();
      print_promise();
    }
  }
  check_versions(units, pass);
  pass_ = pass;
  ++counters_.touches;
  for (int unit : units) {
    emit(trace::EventKind::kTouch, unit);
  }
  const std::vector<int> bundles = bundles_of(units);
  if (bundles.empty()) {
    return;
  }
  is_read_since_fence_ = true;
  const std::vector<Action>* actions = nullptr;
  try {
    actions = &schedule_->touch(bundles, pass, signature);
  } catch (const Error& error) {
    std::string names;
    for (int unit : units) {
      names += (names.empty() ? "\"" : ", \"") + at(unit).name + "\"";
    }
    // Operators that still run on other threads may hold slots as well.
    const int extra_slots =
        std::max(static_cast<int>(bundles.size()) - 1 - options_.memory.prefetch,
                 options_.memory.extra_slots + 1);
    fail(error.code(), "[touch] ", op, " takes weights of the units ", names, ": ", error.text(),
         ". Set MemoryOptions::extra_slots to ", extra_slots,
         " or more, or put these weights into one unit");
  }
  try {
    execute(*actions);
  } catch (...) {
    schedule_->release(bundles);
    throw;
  }
}

void Engine::release(std::span<const int> units) noexcept {
  std::lock_guard lock(mutex_);
  if (failure_ != nullptr || is_stale()) {
    return;
  }
  try {
    const std::vector<int> bundles = bundles_of(units);
    if (!bundles.empty()) {
      execute(schedule_->release(bundles));
    }
  } catch (...) {
    // Unpinning runs in a destructor, maybe while another error unwinds: the next call throws it,
    // as execute() recorded it.
    if (failure_ == nullptr) {
      failure_ = std::current_exception();
    }
  }
}

std::vector<int> Engine::bundles_of(std::span<const int> units) const {
  std::vector<int> bundles;
  for (int unit : units) {
    if (!at(unit).placement.is_resident()) {
      bundles.push_back(at(unit).bundle);
    }
  }
  std::ranges::sort(bundles);
  bundles.erase(std::ranges::unique(bundles).begin(), bundles.end());
  return bundles;
}

void Engine::check_lives_in_shards(const Parameter& parameter, const char* where) {
  const c10::StorageImpl* storage = parameter.tensor.storage().unsafeGetStorageImpl();
  const bool is_whole =
      parameter.whole_storage != nullptr && storage == parameter.whole_storage->key();
  FSDP_CHECK(is_whole || storage == parameter.storage->key(), ErrorCode::kInvalidArgument, "[",
             where, "] parameter \"", parameter.name,
             "\" no longer lives in its unit's shards: module->to(), half() or set_data() after "
             "fully_shard() takes weights out. Convert the module before sharding it");
}

void Engine::check_before_forward() {
  if (is_forward_checked_) {
    return;
  }
  for (const Unit& unit : units_) {
    for (const Parameter& parameter : unit.parameters) {
      check_lives_in_shards(parameter, "touch");
    }
  }
  is_forward_checked_ = true;
  for (CastBuffer& buffer : cast_buffers_) {
    buffer.sync();
  }
  // Stale copies go before any unit is gathered ahead, not at its touch.
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    refresh(unit);
  }
}

void Engine::shard_written(int index) {
  std::lock_guard lock(mutex_);
  check_usable();
  FSDP_CHECK(is_backward_open_ || !sink_->has_deferred(), ErrorCode::kInvalidArgument,
             "[optimizer] the shards of unit \"", at(index).name,
             "\" are about to change while gradients wait to be reduced: they would be missing in "
             "this step. Call set_gradient_sync(GradientSync::kEveryBackward) before the last "
             "backward of a step, or zero_grad() to forget them");
  Unit& unit = at(index);
  if (is_read_since_fence_ && store_->needs_fence() && !unit.placement.is_resident()) {
    // Peers may still read this shard in place: operators that ran after the last fence.
    fence();
  }
  is_forward_checked_ = false;
  unit.flat_shard.unsafeGetTensorImpl()->bump_version();
  if (!unit.was_in_forward && !unit.were_weights_bumped) {
    bump_weights(unit);
  }
}

/// A refill does not bump version counters by itself: graphs recorded with the old weights must
/// learn of it.
void Engine::bump_weights(Unit& unit) {
  for (Parameter& parameter : unit.parameters) {
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  unit.were_weights_bumped = true;
}

/// Takes note that the shards changed: a gathered copy is stale.
void Engine::refresh(int index) {
  Unit& unit = at(index);
  const std::uint32_t version = unit.shard_version();
  if (unit.placement.is_resident()) {
    renew_slice(index);  // there is no gather that would do it
  }
  if (version == unit.seen_version) {
    return;
  }
  if (!std::exchange(unit.were_weights_bumped, false)) {
    bump_weights(unit);
    unit.were_weights_bumped = false;
  }
  unit.seen_version = version;
  unit.was_in_forward = false;
  unit.has_secondary = false;
  if (!schedule_->is_pinned(unit.bundle) && full_depth_ == 0) {
    execute(schedule_->invalidate(unit.bundle));
  }
}

void Engine::check_versions(std::span<const int> units, Pass pass) {
  for (int index : units) {
    Unit& unit = at(index);
    FSDP_CHECK(
        pass != Pass::kBackward || !unit.was_in_forward ||
            unit.shard_version() == unit.seen_version,
        ErrorCode::kInvalidArgument, "[touch] the shards of unit \"", unit.name,
        "\" were changed between its forward and its backward (version ", unit.seen_version,
        " then, ", unit.shard_version(),
        " now): gradients would be those of other weights. Step the optimizer after backward");
    refresh(index);
    unit.was_in_forward = unit.was_in_forward || pass != Pass::kBackward;
  }
}

std::string Engine::describe(const Hit& hit) const {
  return "parameter \"" + at(hit.unit).parameters[static_cast<std::size_t>(hit.parameter)].name +
         "\" of unit \"" + at(hit.unit).name + "\"";
}

void Engine::refuse_mixing(int index, std::int64_t begin, bool is_gradient, const char* op) {
  std::string name = "unit \"" + at(index).name + "\"";
  for (const Parameter& parameter : at(index).parameters) {
    const at::Tensor& part = is_gradient ? parameter.grad_shard : parameter.shard;
    if (part.storage_offset() == begin && part.numel() > 0) {
      name = "\"" + parameter.name + "\", " + std::to_string(part.numel()) + " of " +
             std::to_string(parameter.numel) + " elements";
    }
  }
  fail(
      ErrorCode::kInvalidArgument, "[touch] ", op, " mixes the elements of this rank's part of ",
      is_gradient ? "the gradient of " : "", name,
      ": each rank would get another result. To clip: fsdp::clip_grad_norm_(sharded, max_norm, p), "
      "to measure: fsdp::grad_norm(sharded, p). An optimizer that looks at a parameter as a whole "
      "(LAMB, Muon, LBFGS) cannot run on shards: fsdp::optim::Muon can, "
      "fsdp::optim::WholeTensors gathers, and so does sharded.full_parameters(). A clone() of the "
      "part is a plain tensor");
}

void Engine::refuse_grad_use(const Hit& hit, const char* op) {
  fail(ErrorCode::kInvalidArgument, "[touch] ", op, " takes the grad of the module's ",
       describe(hit),
       ", but gradients live in shards: build the optimizer on sharded.parameters() and clip with "
       "fsdp::clip_grad_norm_(sharded, max_norm). An optimizer on module->parameters() would train "
       "nothing");
}

// --- what the facade asks --------------------------------------------------------------------

void Engine::reshard() {
  std::lock_guard lock(mutex_);
  check_usable();
  recover_from_dead_backward();
  is_forward_checked_ = false;
  execute(schedule_->reshard());
}

void Engine::zero_grad() {
  std::lock_guard lock(mutex_);
  check_usable();
  recover_from_dead_backward();
  sink_->zero();
}

Counters Engine::counters() const {
  std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.prefetch_misses = schedule_->misses() - counters_.prefetch_misses;
  return counters;
}

/// What optimizers hold lies where the shards do.
memory::Kind Engine::kind_of_held(memory::Kind kind) const {
  return is_offloaded() && kind == memory::Kind::kStaging ? memory::Kind::kOffloadHost : kind;
}

void Engine::hold_memory(memory::Kind kind, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  kind = kind_of_held(kind);
  ledger_.add(kind, bytes);
  held_[kind] += bytes;
  most_held_[kind] = std::max(most_held_[kind], held_[kind]);
  has_optimizer_ = has_optimizer_ || kind == memory::Kind::kMoments;
}

void Engine::release_memory(memory::Kind kind, std::int64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  kind = kind_of_held(kind);
  ledger_.remove(kind, bytes);
  held_[kind] -= bytes;
}

memory::Bytes Engine::promise() const {
  std::lock_guard lock(mutex_);
  memory::Bytes promise = promise_;
  if (has_optimizer_) {
    promise[memory::Kind::kMoments] = 0;
  }
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    promise[static_cast<memory::Kind>(kind)] += most_held_[static_cast<memory::Kind>(kind)];
  }
  return promise;
}

void Engine::reset_counters() {
  std::lock_guard lock(mutex_);
  counters_ = {};
  counters_.prefetch_misses = schedule_->misses();
}

OperandCast Engine::cast_of(int unit) const {
  const Unit& of = at(unit);
  return {.operands = of.casts_operands, .results = of.result_dtype};
}

const std::vector<NamedBuffer>& Engine::buffers() {
  std::lock_guard lock(mutex_);
  is_forward_checked_ = false;  // the caller may write them
  for (CastBuffer& buffer : cast_buffers_) {
    buffer.sync();
  }
  return buffers_;
}

void Engine::set_loss_scaled() {
  std::lock_guard lock(mutex_);
  is_loss_scaled_ = true;
}

void Engine::check_loss_scaled() const {
  FSDP_CHECK(is_loss_scaled_ || !gathers_float16(options_) || options_.precision.allow_unscaled,
             ErrorCode::kInvalidArgument,
             "[touch] the model trains in float16, whose smallest number is 6e-8, and no "
             "fsdp::LossScaler was made for it: gradients would vanish. Make one and call "
             "scaler.scale(loss).backward(), use bfloat16, or set precision.allow_unscaled");
}

bool Engine::is_unsharded(int unit) {
  std::lock_guard lock(mutex_);
  if (is_stale()) {
    start_over();
  }
  return schedule_->is_unsharded(at(unit).bundle);
}

bool Engine::owns(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() &&
         is_registered(tensor.storage().unsafeGetStorageImpl(), this);
}

std::vector<Engine::OrderedParameter> Engine::ordered_parameters() const {
  std::vector<OrderedParameter> ordered;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    for (const Parameter& parameter : at(unit).parameters) {
      const auto order = static_cast<std::size_t>(parameter.order);
      ordered.resize(std::max(ordered.size(), order + 1));
      ordered[order] = {.unit = unit, .parameter = &parameter};
    }
  }
  return ordered;
}

std::vector<NamedShard> Engine::named_shards() const {
  std::vector<NamedShard> shards;
  for (const auto& [unit, parameter] : ordered_parameters()) {
    shards.push_back(named_shard(unit, *parameter));
  }
  return shards;
}

std::vector<FlatShard> Engine::flats() {
  std::lock_guard lock(mutex_);
  check_usable();
  std::vector<FlatShard> flats;
  for (const Unit& unit : units_) {
    const bool has_grad = std::ranges::any_of(unit.parameters, [](const Parameter& parameter) {
      return parameter.shard.grad().defined();
    });
    const std::int64_t slice = unit.layout->shard_numel();
    flats.push_back(
        {.shard = unit.flat_shard,
         .grad = has_grad ? unit.flat_grad_shard : at::Tensor(),
         .trains = unit.is_trainable(),
         .answered_begin = (unit.placement.answers_for - unit.placement.own.first) * slice,
         .answered_numel = slice});
  }
  return flats;
}

}  // namespace fsdp::engine
