// SPDX-License-Identifier: Apache-2.0
/// From a module in one piece to shards: the part of the engine that runs once.
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/partition/manifest.hpp"
#include "engine/touch/backward.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/unit/home.hpp"
#include "engine/unit/slice.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Memory order is kept where a permutation of strides describes it (transposed, channels last).
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.strides().vec()
                                               : tensor.contiguous().strides().vec();
}

/// A part of the flat shard with the touch key, so that writes to it are noticed.
at::Tensor tagged_part(const at::Tensor& flat, std::int64_t begin, std::int64_t numel) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(flat.storage()),
      flat.key_set() | c10::DispatchKeySet(kTouchKey), flat.dtype());
  impl->set_storage_offset(flat.storage_offset() + begin);
  impl->set_sizes_contiguous({numel});
  impl->set_version_counter(flat.unsafeGetTensorImpl()->version_counter());
  return at::Tensor(std::move(impl));
}

std::string freed_message(const Parameter& parameter, const std::string& unit) {
  return "parameter \"" + parameter.name + "\" is sharded and its unit \"" + unit +
         "\" is not gathered now. Operators gather it by themselves; for raw pointers and "
         "torch::save "
         "hold fsdp::Sharded::full_parameters() on all ranks";
}

}  // namespace

std::shared_ptr<Engine> Engine::create(Partition partition, const World& world, Options options) {
  ensure_fallback();
  ensure_autograd_engine();
  std::shared_ptr<Engine> engine(new Engine(std::move(partition), world, std::move(options)));
  engine->set_up();
  return engine;
}

Engine::Engine(Partition partition, const World& world, Options options)
    : world_(world),
      communicator_(world.communicator()),
      options_(std::move(options)),
      units_(std::move(partition.units)),
      bundles_(units_),
      root_(partition.root),
      replicated_(partition.replicated),
      buffers_(std::move(partition.buffers)),
      low_buffers_(std::move(partition.low_buffers)) {}

void Engine::set_up() {
  c10::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  check_options();
  copier_ = make_copier(options_, units_.front().device, counters_);
  set_home(units_, options_, copier_.get());
  place_units();
  agree_on_manifest(communicator_, units_, options_);
  if (options_.initial_weights == InitialWeights::kCheckEqual) {
    check_equal_weights(communicator_, units_);
  }
  make_stores();
  make_schedule();
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    make_views(unit);
    install_hooks(unit);
  }
  if (options_.initial_weights == InitialWeights::kBroadcast) {
    for (const auto& [name, buffer] : buffers_) {
      const at::Tensor dense = buffer.contiguous();
      communicator_.broadcast(dense, 0, {.name = "fully_shard: buffer " + name})->wait();
      if (!dense.is_same(buffer)) {
        buffer.copy_(dense);
      }
    }
  }
  cast_buffers();
  generation_ = communicator_.generation();
  update_promise();
}

void Engine::check_options() const {
  const MemoryOptions& memory = options_.memory;
  FSDP_CHECK(memory.prefetch >= 0, ErrorCode::kInvalidArgument, "[fully_shard] prefetch is ",
             memory.prefetch, ", must be 0 or more");
  FSDP_CHECK(memory.align_bytes >= 0 && memory.extra_slots >= 0 && options_.replicate_below >= 0,
             ErrorCode::kInvalidArgument, "[fully_shard] align_bytes is ", memory.align_bytes,
             ", extra_slots ", memory.extra_slots, " and replicate_below ",
             options_.replicate_below, ", none may be negative");
  const double divisor = options_.gradient_divisor.among(world_.size());
  FSDP_CHECK(std::isfinite(divisor) && divisor > 0, ErrorCode::kInvalidArgument,
             "[fully_shard] gradient_divisor is ", divisor, ", must be positive and finite");
}

/// Which slices of each unit are whose.
void Engine::place_units() {
  const Groups mesh = groups_of_mesh();
  for (Unit& unit : units_) {
    unit.placement = make_placement(unit.placement.strategy, communicator_, mesh);
    unit.is_kept = unit.is_kept && !unit.placement.is_resident();
    std::vector<std::int64_t> numels;
    for (Parameter& parameter : unit.parameters) {
      parameter.strides = dense_strides(parameter.tensor);
      numels.push_back(parameter.numel);
    }
    const std::int64_t smallest = std::min({unit.itemsize(), Unit::itemsize_of(unit.param_dtype),
                                            Unit::itemsize_of(unit.reduce_dtype)});
    const std::int64_t align = std::max<std::int64_t>(1, options_.memory.align_bytes / smallest);
    unit.layout =
        std::make_unique<layout::UnitLayout>(std::move(numels), unit.placement.slices, align);
    const SliceRun& own = unit.placement.own;
    for (int i = 0; i < unit.layout->parameters(); ++i) {
      Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
      parameter.piece = unit.layout->piece(i, own.first, own.count);
      parameter.answered = unit.layout->piece(i, unit.placement.answers_for);
      // From the start of that slice to the start of the parameter's shard.
      parameter.answered.shard_offset =
          parameter.answered.numel == 0
              ? 0
              : parameter.answered.shard_offset - parameter.piece.shard_offset +
                    (unit.placement.answers_for - own.first) * unit.layout->shard_numel();
    }
  }
}

Groups Engine::groups_of_mesh() const {
  const auto needs_it = [](const Unit& unit) { return needs_mesh(unit.placement.strategy); };
  const auto unit = std::ranges::find_if(units_, needs_it);
  const bool is_needed = unit != units_.end();
  const std::optional<DeviceMesh>& mesh = options_.mesh;
  FSDP_CHECK(mesh.has_value() == is_needed, ErrorCode::kInvalidArgument,
             "[fully_shard] the strategy ",
             to_string(is_needed ? unit->placement.strategy : options_.strategy),
             is_needed ? " needs Options::mesh, which says who is whose replica"
                       : " has no use for Options::mesh: take a hybrid strategy, or leave it out");
  if (!is_needed) {
    return {};
  }
  FSDP_CHECK(&mesh->world().communicator() == &communicator_, ErrorCode::kInvalidArgument,
             "[fully_shard] Options::mesh is of another world than the one that is sharded over");
  mesh->refuse_others(
      {DeviceMesh::kReplicate, DeviceMesh::kShard},
      std::string("[fully_shard] the strategy ") + to_string(unit->placement.strategy));
  return {.shard = &mesh->shard().communicator(), .replicate = &mesh->replicate().communicator()};
}

bool Engine::is_aliased() const {
  FSDP_CHECK(
      options_.memory.store != Store::kAliased || !is_offloaded(), ErrorCode::kUnsupported,
      "[fully_shard] MemoryOptions::offload with Store::kAliased: there a shard is a part of the "
      "gathered unit and cannot live in other memory. Use Store::kSlots");
  const bool is_on_cpu =
      std::ranges::all_of(units_, [](const Unit& unit) { return unit.device.is_cpu(); });
  return options_.memory.store == Store::kAliased ||
         (options_.memory.store == Store::kAuto && communicator_.shares_memory() && is_on_cpu &&
          !is_offloaded());
}

void Engine::make_stores() {
  std::vector<int> kept, own_buffers;
  int others = 0;
  for (int bundle = 0; bundle < bundles_.count(); ++bundle) {
    const auto members = bundles_.members(bundle);
    if (std::ranges::any_of(members, [&](int unit) { return at(unit).is_kept; })) {
      kept.push_back(bundle);
    }
    const bool is_spread_over_backward = bundle == root_ || bundle == replicated_;
    if (is_spread_over_backward && bundles_.count() > 1) {
      own_buffers.push_back(bundle);
    } else {
      ++others;
    }
  }
  schedule_config_ = {.units = bundles_.count(),
                      .prefetch = options_.memory.prefetch,
                      .slots = 1 + options_.memory.prefetch + options_.memory.extra_slots,
                      .reduce_buffers = std::clamp(others, 1, 2),
                      .kept = kept,
                      .own_buffers = own_buffers};
  store_ = is_aliased() ? make_aliased_store(ledger_)
                        : make_slot_store(ledger_, {.slots = schedule_config_.slots, .kept = kept});
  store_->make_shards(units_);
  for (Unit& unit : units_) {
    if (unit.placement.is_resident()) {
      make_slice(unit);
      enter_slice(ledger_, unit);
    }
  }
  sink_ = std::make_unique<GradSink>(
      communicator_, ledger_, units_, bundles_,
      SinkConfig{.buffers = schedule_config_.reduce_buffers, .own_buffers = own_buffers},
      counters_);
  tag_gradients();
  sink_->set_divisor(options_.gradient_divisor.among(world_.size()));
}

/// What is entered now, and what an optimizer will add.
void Engine::update_promise() {
  promise_ = ledger_.live();
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    promise_[static_cast<memory::Kind>(kind)] -= held_[static_cast<memory::Kind>(kind)];
  }
  promise_[memory::Kind::kFullScope] -= full_bytes_;
  promise_[memory::Kind::kMoments] = 0;
  for (const Unit& unit : units_) {
    if (unit.flat_grad_shard.defined()) {
      promise_[memory::Kind::kMoments] += unit.shard_bytes() * options_.memory.moments;
    }
  }
}

void Engine::cast_buffers() {
  const auto dtype = options_.precision.buffers;
  if (!dtype.has_value()) {
    return;
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (low_buffers_[i]) {
      cast_buffers_.emplace_back(buffers_[i].buffer, *dtype);
      buffers_[i].buffer = cast_buffers_.back().saved();
    }
  }
}

/// Makes gradient shards known to the dispatcher, once each.
void Engine::tag_gradients() {
  for (std::size_t index = 0; index < units_.size(); ++index) {
    Unit& unit = units_[index];
    if (!unit.flat_grad_shard.defined() || unit.parameters.front().grad_shard.defined()) {
      continue;
    }
    register_storage(unit.flat_grad_shard.storage().unsafeGetStorageImpl(), weak_from_this(),
                     static_cast<int>(index), /*parameter=*/0, StorageRole::kGradShard);
    for (Parameter& parameter : unit.parameters) {
      parameter.grad_shard =
          tagged_part(unit.flat_grad_shard, parameter.piece.shard_offset, parameter.piece.numel);
    }
  }
}

void Engine::make_schedule() {
  schedule_ = std::make_unique<schedule::Schedule>(schedule_config_);
  for (const Unit& unit : units_) {
    if (unit.is_optional) {
      schedule_->set_optional(unit.bundle);
    }
  }
}

/// Moves one unit's weights into the shards and points the module's tensors at storages that are
/// empty until gathered.
void Engine::make_views(int index) {
  Unit& unit = at(index);
  // A reduce buffer serves as the place where the unit is whole once more.
  at::Tensor whole = sink_->spare_memory(index);
  whole.zero_();
  const bool own_values =
      options_.initial_weights == InitialWeights::kCheckEqual || communicator_.rank() == 0;
  for (int i = 0; own_values && i < unit.layout->parameters(); ++i) {
    const Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    whole.narrow(0, unit.layout->offset(i), parameter.numel)
        .as_strided(parameter.sizes, parameter.strides)
        .copy_(values_of(parameter.tensor));
  }
  if (options_.initial_weights == InitialWeights::kBroadcast) {
    communicator_.broadcast(whole, 0, {index, unit.name})->wait();
  }
  transfer(unit, unit.flat_shard, own_slices(unit, whole));

  register_storage(unit.flat_shard.storage().unsafeGetStorageImpl(), weak_from_this(), index,
                   /*parameter=*/0, StorageRole::kShard);
  unit.flat_shard = tagged_part(unit.flat_shard, 0, unit.shard_numel());
  const at::Tensor like = at::empty({0}, at::TensorOptions(unit.param_dtype).device(unit.device));
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    parameter.shard =
        tagged_part(unit.flat_shard, parameter.piece.shard_offset, parameter.piece.numel);
    parameter.shard.set_requires_grad(parameter.tensor.requires_grad());

    const std::int64_t bytes = parameter.numel * Unit::itemsize_of(unit.param_dtype);
    parameter.storage =
        std::make_unique<FlatStorage>(bytes, unit.device, freed_message(parameter, unit.name));
    parameter.grad_guard_storage = std::make_unique<FlatStorage>(
        bytes, unit.device,
        "the grad of \"" + parameter.name + "\" lives in shards: see sharded.named_parameters()");
    register_storage(parameter.storage->key(), weak_from_this(), index, i, StorageRole::kWeight);
    register_storage(parameter.grad_guard_storage->key(), weak_from_this(), index, i,
                     StorageRole::kGradGuard);
    parameter.grad_guard =
        parameter.grad_guard_storage->tagged_view(like, parameter.sizes, parameter.strides);
    parameter.tensor.set_data(
        parameter.storage->tagged_view(like, parameter.sizes, parameter.strides));
  }
  unit.seen_version = unit.shard_version();
  unit.rest();
}

void Engine::install_hooks(int index) {
  Unit& unit = at(index);
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    const at::Tensor& tensor = unit.parameters[static_cast<std::size_t>(i)].tensor;
    if (c10::isFloatingType(unit.dtype) || c10::isComplexType(unit.dtype)) {
      install_gradient_hooks(weak_from_this(), index, i, tensor);
    }
  }
}

Engine::~Engine() {
  for (Unit& unit : units_) {
    if (unit.flat_shard.defined()) {
      unregister_storage(unit.flat_shard.storage().unsafeGetStorageImpl());
    }
    if (unit.flat_grad_shard.defined()) {
      unregister_storage(unit.flat_grad_shard.storage().unsafeGetStorageImpl());
    }
    for (Parameter& parameter : unit.parameters) {
      if (parameter.storage == nullptr) {
        continue;
      }
      unregister_storage(parameter.storage->key());
      unregister_storage(parameter.grad_guard_storage->key());
      parameter.storage->set_freed_message("parameter \"" + parameter.name +
                                           "\" was sharded and its fsdp::Sharded is gone: keep the "
                                           "Sharded alive as long as the module is used");
      remove_gradient_hooks(parameter.tensor);
      parameter.tensor.mutable_grad().reset();
    }
  }
}

void Engine::print_promise() {
  if (has_printed_promise_) {
    return;
  }
  has_printed_promise_ = true;
  if (options_.debug.print_promise && world_.rank() == 0) {
    std::fprintf(
        stderr,
        "fsdp: %zu units over %d ranks, %s; gradients are summed over ranks and divided by "
        "%g; each rank holds at most\n%s",
        units_.size(), world_.size(), to_string(options_.strategy), sink_->divisor(),
        memory::format(promise()).c_str());
    for (const UnitRule& rule : options_.rules) {
      std::fprintf(stderr, "  rule: %s\n", to_string(rule).c_str());
    }
    if (is_offloaded()) {
      std::fprintf(stderr, "  of which on the host %11s\n",
                   memory::format_bytes(memory::on_host(promise()).total()).c_str());
    }
  }
}

}  // namespace fsdp::engine
