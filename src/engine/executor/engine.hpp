// SPDX-License-Identifier: Apache-2.0
/// A sharded module's engine: one lock, and three doors behind it. The dispatcher comes in by
/// TouchTarget, autograd by BackwardTarget, and what trains the shards by ShardAccess;
/// fsdp::Sharded has the key. What happens behind the doors is the business of the classes that
/// Engine has as members; each owns its state, and knows those before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/executor/events.hpp"
#include "engine/executor/executor.hpp"
#include "engine/executor/full_scope.hpp"
#include "engine/executor/gradients.hpp"
#include "engine/executor/health.hpp"
#include "engine/executor/promise.hpp"
#include "engine/executor/residency.hpp"
#include "engine/executor/strangers.hpp"
#include "engine/partition/partition.hpp"
#include "engine/touch/backward_target.hpp"
#include "engine/touch/touch.hpp"
#include "engine/unit/module_buffers.hpp"
#include "engine/unit/module_layout.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/engine/offload.hpp"
#include "fsdp/engine/options.hpp"
#include "fsdp/engine/report.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::engine {

/// *Invariants*: every public member that reads or changes state takes the lock; after a collective
/// failed, every later call throws that first failure, until the communicator has recovered: the
/// next call then starts over, whether this rank had failed or not. *Thread safety*: all members
/// may be called from any thread of the rank.
class Engine : public TouchTarget,
               public BackwardTarget,
               public ShardAccess,
               public std::enable_shared_from_this<Engine> {
 public:
  /// @collective all ranks
  static std::shared_ptr<Engine> create(Partition partition, const World& world, Options options);

  // TouchTarget: called by the dispatcher's fallback.
  void touch(std::span<const int> units, std::span<const Hit> hits, const char* op,
             std::uint64_t signature) override;
  void release(std::span<const int> units) noexcept override;
  void weight_viewed(int unit, int parameter) override;
  void weight_replaced(int unit, int parameter) override;
  void shard_written(int unit) override;
  [[noreturn]] void refuse_mixing(int unit, std::int64_t begin, bool is_gradient,
                                  const char* op) override;
  [[noreturn]] void refuse_grad_use(const Hit& hit, const char* op) override;
  void zero_grad_of(const Hit& hit) override;
  OperandCast cast_of(int unit) const override {
    return {.operands = layout_.at(unit).casts_operands, .results = layout_.at(unit).result_dtype};
  }

  // BackwardTarget: called by autograd, the last by whoever has a shard.
  void expect_gradient(int unit, int parameter) override;
  void gradient(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in) override;
  void end_backward() override;
  void backward_died() noexcept override;
  void shard_grad_asked(int unit, int parameter) override;

  // ShardAccess: called by optimizers, averages and checkpoints.
  std::vector<NamedShard> named_shards() const override;
  std::vector<FlatShard> flats() override;
  void announce_write(int unit) override { shard_written(unit); }
  void zero_grad() override;
  bool has_waiting_gradients() const override;
  std::int64_t first_bad_contribution() const override;
  bool skips_non_finite() const override { return options_.skip_non_finite; }
  void set_loss_scaled() override;
  std::uint64_t compare(HyperParameters of) override;
  void stop_comparing(std::uint64_t id) noexcept override;
  void hold_memory(memory::Kind kind, std::int64_t bytes) override;
  void release_memory(memory::Kind kind, std::int64_t bytes) noexcept override;

  // What fsdp::Sharded asks.

  const std::vector<Unit>& units() const { return layout_.units; }
  const World& world() const { return world_; }
  memory::Ledger& ledger() { return ledger_; }
  memory::Bytes promise() const;
  Counters counters() const;
  void reset_counters();
  bool is_unsharded(int unit);
  bool owns(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() &&
           is_registered(tensor.storage().unsafeGetStorageImpl(), this);
  }
  /// What is saved of the module's buffers.
  const std::vector<NamedBuffer>& buffers();
  void reshard();
  /// Something wrote shards that the dispatcher does not see.
  void mark_written();
  void set_gradient_sync(GradientSync sync);
  void set_gradient_divisor(double divisor);
  std::uint64_t add_reduced_hook(ReducedHook hook);
  void remove_reduced_hook(std::uint64_t id);
  /// Returns which scope it is, for end_full().
  std::uint64_t begin_full(bool writeback);
  void end_full(std::uint64_t scope) noexcept;
  /// For participate(): what was frozen of these units counts.
  void follow_requires_grad(std::span<const int> units);
  /// For participate(): in which order the forward that comes would touch these units.
  std::vector<std::vector<int>> expected_run(std::span<const int> units);

 private:
  Engine(Partition partition, const World& world, Options options);
  void set_up();
  /// Takes the lock, and clears what a backward that died left behind.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> enter();
  /// Where the group has recovered, every rank begins where all are alike, as after fully_shard()
  /// except for the values of the shards: nothing gathered, no gradients, no recorded order. Local.
  void start_over_if_stale();
  /// Throws the first failure, if the group has not recovered since.
  void check_usable();
  void open_backward();
  /// See NOTE [two handles on one gradient].
  void follow_module_grads();
  void renew_promise();
  /// See NOTE [a module that changes after it was sharded].
  void watch_module(const Hit& first);
  void check_module() const;
  /// A backward that brought gradients has ended.
  void end_step();

  mutable std::recursive_mutex mutex_;
  World world_;
  const Options options_;
  memory::Ledger ledger_;
  Counters counters_;
  std::unique_ptr<Copier> copier_;  ///< between the shards' memory and the weights', if they differ
  const ModuleWatch watch_;
  const ScriptWatch script_watch_;
  Strangers strangers_;
  ModuleLayout::Index watched_at_ = {.unit = -1, .parameter = -1};
  bool has_trained_ = false;
  ModuleBuffers buffers_;
  const ModuleLayout layout_;
  Promise promise_;
  Events events_;
  Health health_;
  Residency residency_;
  Gradients gradients_;
  Executor executor_;
  FullScope full_scope_;
};

}  // namespace fsdp::engine
