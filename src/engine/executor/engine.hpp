// SPDX-License-Identifier: Apache-2.0
/// The live executor: touches and gradients go into the schedule, its actions are carried out with
/// the weight store and the gradient sink. One engine per sharded module and rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/partition/partition.hpp"
#include "engine/sink/grad_sink.hpp"
#include "engine/store/weight_store.hpp"
#include "engine/touch/backward_target.hpp"
#include "engine/touch/touch.hpp"
#include "engine/unit/bundle.hpp"
#include "engine/unit/precision.hpp"
#include "engine/unit/unit.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/schedule/schedule.hpp"

namespace fsdp::engine {

/// *Invariants*: every public member takes the lock; after a collective failed, every later call
/// throws that first failure, until the communicator has recovered: the next call then starts over,
/// whether this rank had failed or not, see start_over(). *Thread safety*: all members may be
/// called from any thread of the rank.
class Engine : public TouchTarget,
               public BackwardTarget,
               public ShardAccess,
               public std::enable_shared_from_this<Engine> {
 public:
  /// @collective all ranks
  static std::shared_ptr<Engine> create(Partition partition, const World& world, Options options);
  ~Engine() override;

  // TouchTarget: called by the dispatcher's fallback.
  void touch(std::span<const int> units, std::span<const Hit> hits, const char* op,
             std::uint64_t signature) override;
  void release(std::span<const int> units) noexcept override;
  void shard_written(int unit) override;
  [[noreturn]] void refuse_mixing(int unit, std::int64_t begin, bool is_gradient,
                                  const char* op) override;
  [[noreturn]] void refuse_grad_use(const Hit& hit, const char* op) override;
  OperandCast cast_of(int unit) const override;

  // BackwardTarget: called by autograd.
  void gradient(int unit, int parameter, const at::Tensor& tensor) override;
  void end_backward() override;
  void backward_died() noexcept override;

  // ShardAccess: called by optimizers, averages and checkpoints.
  std::vector<NamedShard> named_shards() const override;
  std::vector<FlatShard> flats() override;
  void announce_write(int unit) override { shard_written(unit); }
  void zero_grad() override;
  bool skips_non_finite() const override { return options_.skip_non_finite; }
  void set_loss_scaled() override;
  void hold_memory(memory::Kind kind, std::int64_t bytes) override;
  void release_memory(memory::Kind kind, std::int64_t bytes) noexcept override;

  /// For participate(): in which order the forward that comes would touch these units.
  std::vector<std::vector<int>> expected_run(std::span<const int> units);
  /// Touches units as an operator called `op` would that takes their weights and ends at once.
  void touch_briefly(std::span<const int> units, const char* op);

  void reshard();
  void set_gradient_sync(GradientSync sync);
  void set_gradient_divisor(double divisor);
  std::uint64_t add_reduced_hook(ReducedHook hook);
  void remove_reduced_hook(std::uint64_t id);
  /// Returns which scope it is, for end_full().
  std::uint64_t begin_full(bool writeback);
  void end_full(std::uint64_t scope) noexcept;

  const std::vector<Unit>& units() const { return units_; }
  /// What is saved of the module's buffers.
  const std::vector<NamedBuffer>& buffers();
  const World& world() const { return world_; }
  const Options& options() const { return options_; }
  memory::Ledger& ledger() { return ledger_; }
  bool is_offloaded() const { return copier_ != nullptr; }
  memory::Bytes promise() const;
  Counters counters() const;
  void reset_counters();
  bool is_unsharded(int unit);
  /// Throws the first failure, if the group has not recovered since.
  void check_usable();
  bool owns(const at::Tensor& tensor) const;

 private:
  struct OrderedParameter {
    int unit;
    const Parameter* parameter;
  };
  Engine(Partition partition, const World& world, Options options);
  void set_up();
  void check_options() const;
  void place_units();
  Groups groups_of_mesh() const;
  bool is_aliased() const;
  void make_stores();
  void make_schedule();
  void make_views(int unit);
  void install_hooks(int unit);
  void set_guard_grads();

  bool is_stale() const;
  void execute(const std::vector<schedule::Action>& actions);
  /// Does what ranks do together: a failure is the group's.
  template <class Action>
  void together(Action action);
  void fence();
  void hand_out_gradients();
  void bring_gradients_home();
  void drop_gradients();
  void start_gather(const schedule::Action& action);
  void wait_gather(const schedule::Action& action);
  void free(const schedule::Action& action);
  void count_gather(const Unit& unit, at::ScalarType dtype);
  void renew_slice(int unit, int slot = -1);
  /// The bundles of these units that are gathered, ascending.
  std::vector<int> bundles_of(std::span<const int> units) const;
  void emit(trace::EventKind kind, int unit, int slot = -1);
  void emit_reduced(trace::EventKind kind, const schedule::Action& action);
  void emit_bytes(trace::EventKind kind, int unit, int slot);

  void ensure_backward();
  bool is_complete(int bundle) const;
  void follow_requires_grad();
  void update_promise();
  void tag_gradients();
  static NamedShard named_shard(int unit, const Parameter& parameter);
  void run_reduced_hooks();
  void recover_from_dead_backward();
  void record_failure();
  void start_over();
  /// `where`: what the error names.
  static void check_lives_in_shards(const Parameter& parameter, const char* where);
  void check_before_forward();
  void check_versions(std::span<const int> units, schedule::Pass pass);
  void refresh(int unit);
  void bump_weights(Unit& unit);
  void check_unused_parameters();
  std::string describe(const Hit& hit) const;
  void print_promise();
  void check_loss_scaled() const;
  /// Parameters in the module's order.
  std::vector<OrderedParameter> ordered_parameters() const;
  void cast_buffers();
  memory::Kind kind_of_held(memory::Kind kind) const;
  void show_whole(int index, void* base);
  static void hide_whole(Unit& unit);

  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  mutable std::recursive_mutex mutex_;
  World world_;
  comm::Communicator& communicator_;
  Options options_;
  Counters counters_;
  memory::Ledger ledger_;
  memory::Bytes promise_;
  memory::Bytes held_, most_held_;  ///< by optimizers
  bool has_optimizer_ = false;
  std::vector<Unit> units_;
  Bundles bundles_;
  std::optional<int> root_;        ///< bundle of the root unit
  std::optional<int> replicated_;  ///< bundle of Options::replicate_below
  std::vector<NamedBuffer> buffers_;
  std::vector<bool> low_buffers_;  ///< which of them are to be cast
  std::vector<CastBuffer> cast_buffers_;
  std::unique_ptr<Copier> copier_;  ///< between the shards' memory and the weights', if they differ
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<GradSink> sink_;
  schedule::Config schedule_config_;
  std::unique_ptr<schedule::Schedule> schedule_;

  schedule::Pass pass_ = schedule::Pass::kForward;  ///< of the last touch
  bool is_backward_open_ = false;
  bool is_backward_dead_ = false;  ///< what it left is cleared at the next call
  bool has_gradients_ = false;     ///< in this backward
  bool is_forward_checked_ = false;
  bool is_read_since_fence_ = false;
  bool has_finished_a_backward_ = false;
  bool has_printed_promise_ = false;
  bool is_loss_scaled_ = false;
  std::exception_ptr failure_;
  std::uint64_t generation_ = 0;  ///< the communicator's, at the last call

  std::map<std::uint64_t, ReducedHook> reduced_hooks_;  ///< by id, which counts
  std::uint64_t last_hook_ = 0;

  int full_depth_ = 0;
  std::uint64_t full_scope_ = 0;  ///< counts the outermost ones
  bool full_writeback_ = false;
  std::vector<at::Tensor> full_buffers_;
  std::int64_t full_bytes_ = 0;
};

}  // namespace fsdp::engine
