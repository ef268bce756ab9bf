// SPDX-License-Identifier: Apache-2.0
/// From a module in one piece to shards: the part of the engine that runs once.
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/backward.hpp"
#include "engine/engine.hpp"
#include "engine/manifest.hpp"
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
      root_(partition.root),
      units_(std::move(partition.units)),
      buffers_(std::move(partition.buffers)) {}

void Engine::set_up() {
  c10::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  FSDP_CHECK(options_.prefetch >= 0, ErrorCode::kInvalidArgument, "[fully_shard] prefetch is ",
             options_.prefetch, ", must be 0 or more");
  FSDP_CHECK(options_.align_bytes >= 0 && options_.extra_slots >= 0, ErrorCode::kInvalidArgument,
             "[fully_shard] align_bytes is ", options_.align_bytes, " and extra_slots ",
             options_.extra_slots, ", neither may be negative");
  for (Unit& unit : units_) {
    std::vector<std::int64_t> numels;
    for (Parameter& parameter : unit.parameters) {
      parameter.strides = dense_strides(parameter.tensor);
      numels.push_back(parameter.numel);
    }
    const std::int64_t align = std::max<std::int64_t>(1, options_.align_bytes / unit.itemsize());
    unit.layout = std::make_unique<layout::UnitLayout>(std::move(numels), world_.size(), align);
  }
  agree_on_manifest(communicator_, units_, options_);
  if (options_.initial_weights == InitialWeights::kCheckEqual) {
    check_equal_weights(communicator_, units_);
  }

  const int count = static_cast<int>(units_.size());
  const int others = count - (root_ >= 0 ? 1 : 0);
  const bool keeps_root = options_.keep_root && root_ >= 0;
  schedule::Config& config = schedule_config_;
  config = {.units = count,
            .root = root_,
            .keep_root = keeps_root,
            .prefetch = options_.prefetch,
            .slots = 1 + options_.prefetch + options_.extra_slots,
            .reduce_buffers = std::clamp(others, 1, 2)};
  const StoreConfig store_config{.slots = config.slots, .kept_unit = keeps_root ? root_ : -1};
  const bool is_on_cpu = std::all_of(units_.begin(), units_.end(),
                                     [](const Unit& unit) { return unit.device.is_cpu(); });
  const bool is_aliased =
      options_.store == Store::kAliased ||
      (options_.store == Store::kAuto && communicator_.shares_memory() && is_on_cpu);
  store_ = is_aliased ? make_aliased_store(communicator_, ledger_)
                      : make_slot_store(communicator_, ledger_, store_config);
  config.fence = store_->needs_fence();
  make_schedule();
  store_->make_shards(units_);
  sink_ = std::make_unique<GradSink>(communicator_, ledger_, units_, root_, config.reduce_buffers);
  const std::int64_t staging =
      communicator_.reserve_staging(largest_padded_bytes(units_, /*except=*/-1), 1);
  ledger_.add(memory::Kind::kStaging, staging);

  for (int unit = 0; unit < count; ++unit) {
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

  generation_ = communicator_.generation();
  promise_ = ledger_.live();
  promise_[memory::Kind::kMoments] = promise_[memory::Kind::kShards] * options_.moments;
}

void Engine::make_schedule() {
  schedule_.emplace(schedule_config_);
  for (int unit = 0; unit < schedule_config_.units; ++unit) {
    if (at(unit).is_optional) {
      schedule_->set_optional(unit);
    }
  }
}

/// Moves one unit's weights into the shards and points the module's tensors at storages that are
/// empty until gathered.
void Engine::make_views(int index) {
  Unit& unit = at(index);
  const int rank = communicator_.rank();
  // A reduce buffer serves as the place where the unit is whole once more.
  at::Tensor whole = sink_->spare_view(index);
  whole.zero_();
  const bool own_values = options_.initial_weights == InitialWeights::kCheckEqual || rank == 0;
  for (int i = 0; own_values && i < unit.layout->parameters(); ++i) {
    const Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    whole.narrow(0, unit.layout->offset(i), parameter.numel)
        .as_strided(parameter.sizes, parameter.strides)
        .copy_(parameter.tensor.detach());
  }
  if (options_.initial_weights == InitialWeights::kBroadcast) {
    communicator_.broadcast(whole, 0, {index, unit.name})->wait();
  }
  const std::int64_t shard_numel = unit.layout->shard_numel();
  unit.flat_shard.copy_(whole.narrow(0, shard_numel * rank, shard_numel));

  register_storage(unit.flat_shard.storage().unsafeGetStorageImpl(), weak_from_this(), index,
                   /*parameter=*/0, StorageRole::kShard);
  unit.flat_shard = tagged_part(unit.flat_shard, 0, shard_numel);
  register_storage(unit.flat_grad_shard.storage().unsafeGetStorageImpl(), weak_from_this(), index,
                   /*parameter=*/0, StorageRole::kGradShard);
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    parameter.piece = unit.layout->piece(i, rank);
    parameter.shard =
        tagged_part(unit.flat_shard, parameter.piece.shard_offset, parameter.piece.numel);
    parameter.shard.set_requires_grad(parameter.tensor.requires_grad());
    parameter.grad_shard =
        tagged_part(unit.flat_grad_shard, parameter.piece.shard_offset, parameter.piece.numel);

    const std::int64_t bytes = parameter.numel * unit.itemsize();
    parameter.storage =
        std::make_unique<FlatStorage>(bytes, unit.device, freed_message(parameter, unit.name));
    parameter.grad_guard_storage = std::make_unique<FlatStorage>(
        bytes, unit.device,
        "the grad of \"" + parameter.name + "\" lives in shards: see sharded.named_parameters()");
    register_storage(parameter.storage->key(), weak_from_this(), index, i, StorageRole::kWeight);
    register_storage(parameter.grad_guard_storage->key(), weak_from_this(), index, i,
                     StorageRole::kGradGuard);
    const at::Tensor like = parameter.tensor.detach();
    parameter.grad_guard =
        parameter.grad_guard_storage->tagged_view(like, parameter.sizes, parameter.strides);
    parameter.tensor.set_data(
        parameter.storage->tagged_view(like, parameter.sizes, parameter.strides));
  }
  unit.seen_version = unit.shard_version();
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
  if (options_.print_promise && world_.rank() == 0) {
    std::fprintf(stderr, "fsdp: %zu units over %d ranks; each rank holds at most\n%s",
                 units_.size(), world_.size(), memory::format(promise()).c_str());
  }
}

// --- full parameters -------------------------------------------------------------------------

std::uint64_t Engine::begin_full(bool writeback) {
  std::lock_guard lock(mutex_);
  c10::NoGradGuard no_grad;
  check_usable();
  recover_from_dead_backward();
  FSDP_CHECK(!is_backward_open_, ErrorCode::kInvalidArgument,
             "[full_parameters] a backward is under way");
  if (full_depth_ > 0) {
    FSDP_CHECK(!writeback || full_writeback_, ErrorCode::kInvalidArgument,
               "[full_parameters] a scope with writeback inside one without it");
    ++full_depth_;
    return full_scope_;
  }
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  execute(schedule_->reshard());
  try {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      at::Tensor whole = at::empty({unit.layout->padded_numel()},
                                   at::TensorOptions(unit.dtype).device(unit.device));
      ledger_.add(memory::Kind::kFullScope, unit.padded_bytes());
      full_bytes_ += unit.padded_bytes();
      // A name of its own, lest it pass for the same unit's gather in a peer's forward.
      communicator_.all_gather(whole, unit.flat_shard, {.name = "full_parameters: " + unit.name})
          ->wait();
      count_gather(unit);
      schedule_->hold(static_cast<int>(i));
      unit.install(whole.data_ptr());
      full_buffers_.push_back(std::move(whole));
    }
  } catch (...) {
    record_failure();
    std::rethrow_exception(failure_);
  }
  full_writeback_ = writeback;
  full_depth_ = 1;
  return ++full_scope_;
}

void Engine::end_full(std::uint64_t scope) noexcept {
  std::lock_guard lock(mutex_);
  const bool is_over = full_depth_ == 0 || scope != full_scope_ || is_stale();
  if (is_over || failure_ != nullptr || --full_depth_ > 0) {
    return;
  }
  c10::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (full_writeback_) {
      const std::int64_t numel = unit.layout->shard_numel();
      unit.flat_shard.copy_(full_buffers_[i].narrow(0, numel * communicator_.rank(), numel));
    }
    unit.remove();
    schedule_->unhold(static_cast<int>(i));
  }
  full_buffers_.clear();
  ledger_.remove(memory::Kind::kFullScope, std::exchange(full_bytes_, 0));
  full_writeback_ = false;
}

}  // namespace fsdp::engine
