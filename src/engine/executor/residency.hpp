// SPDX-License-Identifier: Apache-2.0
/// Where a module's weights are: slices and shards, which a rank always has; whole units, which a
/// store makes and frees as the schedule says; and the module's tensors, which are views of them.
/// When that happens is the Executor's business.
///
/// NOTE [when a slice of shared weights may be written]
/// With weights in shared memory a rank's shard is what its peers compute with. Its optimizer may
/// write when all ranks are done with the weights, and peers may read again when it has written:
///
///   backward's end  ranks tell each other which gradients there are (Presence): each does so
///                   after its own backward, and goes on when it has heard of all: the fence
///   other reads     operators that took weights since (evaluation, a norm, a backward that
///                   reduced nothing): the first write to a shard asks for an agreement, see
///                   Residency::announce_write()
///   next read       the agreement that stands for a unit's gather: a rank joins it after its own
///                   optimizer's step
///
/// Where operators take another type than the shards have, what is shared is a copy. It is written
/// just before that agreement, when the shard has changed, hence after the fence that came before
/// the change; a unit whose shard has changed is read by nobody in between, see
/// Residency::refresh().
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/executor/events.hpp"
#include "engine/executor/health.hpp"
#include "engine/store/weight_store.hpp"
#include "engine/unit/flat_parts.hpp"
#include "engine/unit/module_layout.hpp"
#include "engine/unit/slice.hpp"
#include "engine/unit/stream_uses.hpp"
#include "engine/unit/weight_views.hpp"
#include "fsdp/engine/report.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// Counts a gather of the unit in this type.
void count_gather(Counters& counters, const Unit& unit, at::ScalarType dtype);

/// *Invariants*: gathers of a bundle start, are waited for and are freed in turn. *Thread safety*:
/// under the engine's lock.
class Residency {
 public:
  /// All that is passed outlives it. With `poisons`, freed weights become NaN.
  /// @collective all ranks, with weights in shared memory
  Residency(const ModuleLayout& layout, memory::Ledger& ledger, Counters& counters, Health& health,
            const Events& events, comm::Job& world, bool poisons);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// Makes weights and shards known to the dispatcher.
  void connect(const std::weak_ptr<TouchTarget>& target);
  /// Takes this rank's shard from `whole`, [padded_numel] of the shards' type, and the module's own
  /// memory from its tensors: they are whole while the unit is gathered.
  void take(int unit, const at::Tensor& whole);
  /// By unit.
  const std::vector<FlatParts>& shards() const { return shards_; }

  // The schedule's actions.

  void start_gather(int bundle, int slot);
  /// Issues what was started, where that had to wait.
  void launch() { store_->launch(); }
  /// @blocks. With `keeps_secondary`, for the next gather to reach less far.
  void wait_gather(int bundle, int slot, bool keeps_secondary);
  void free(int bundle, int slot);
  /// Operators on the current stream take the unit's weights. See NOTE [several streams].
  void use_on_stream(int unit);

  // The module's tensors.

  /// @throws Error kInvalidArgument, which names `where`, when the program took weights out
  void check_in_shards(const char* where) const;
  void check_in_shards(int unit, int parameter, const char* where) const;
  /// Whether the module's tensor is the view that it was made.
  bool is_shown(int unit, int parameter) const { return of(unit).shown->shows(parameter); }
  /// The module's tensors of a unit are shown elsewhere for a time, then here again.
  void show(int unit, const WeightViews& elsewhere);
  void show_again(int unit);
  /// Those that the program has replaced, where they were shown last.
  void show_replaced(int unit);
  /// Points them at `whole`, in the type that operators take; until put_away().
  void install(int unit, void* whole);
  void put_away(int unit);
  /// Operators take these weights, and `records_graph` of it.
  void note_taken(std::span<const Hit> hits, bool records_graph);
  /// @throws Error kInvalidArgument for a parameter that no operator has ever taken, and that no
  /// member held
  void check_all_taken() const;
  /// Parameters that train and were not taken since end_step(), though they were before it; or, if
  /// `ever`, that were not taken at all.
  std::vector<ModuleLayout::Index> left_out(bool ever) const;
  /// Tells, if `tells`, of weights that were left out while another of the same shape was taken as
  /// often as both in the step before, as it would be if it was assigned to the one's member. Of
  /// each once.
  void tell_of_stand_ins(std::span<const ModuleLayout::Index> left_out, bool tells);
  /// A step has ended.
  void end_step();

  // Changes of shards.

  /// This rank's shard is about to be written. @collective where peers may still read it
  void announce_write(int unit);
  /// Handles of shards that show other memory come back, see NOTE [Handles that stray].
  /// @collective as announce_write(), where there are such
  void bring_home();
  /// All ranks are done with the shared weights.
  void note_fence() { is_read_since_fence_ = false; }
  /// Operators read gathered weights.
  void note_read() { is_read_since_fence_ = true; }
  /// Takes note of a change of the shards. Returns whether there was one: a gathered copy is stale.
  bool refresh(int unit);
  /// @throws Error kInvalidArgument when they changed since a forward took them
  void check_unchanged_since_forward(int unit) const;
  /// A forward takes the unit's weights, which its backward will want unchanged.
  void note_forward(int unit) { of(unit).was_in_forward = true; }
  /// What forwards left for a backward is void.
  void forget_forwards();
  /// After the group has recovered: nothing is gathered.
  void start_over();

 private:
  /// When operators took a parameter.
  struct Taken {
    bool ever = false, this_step = false, last_step = false;
    bool is_told = false;                    ///< see tell_of_stand_ins()
    std::uint32_t recorded = 0, before = 0;  ///< how often in graphs: in this step, in the last
  };
  /// What is known of a unit's weights.
  struct OfUnit {
    std::vector<Taken> taken;          ///< by parameter
    std::uint32_t seen_version = 0;    ///< of the shard, when its weights were last used
    bool was_in_forward = false;       ///< its weights were taken since, and no backward has ended
    bool were_weights_bumped = false;  ///< their version counters know of what came since
    const WeightViews* shown = nullptr;  ///< what the module's tensors are views of
  };

  OfUnit& of(int unit) { return of_units_[static_cast<std::size_t>(unit)]; }
  const OfUnit& of(int unit) const { return of_units_[static_cast<std::size_t>(unit)]; }
  Slice& slice(int unit) { return slices_[static_cast<std::size_t>(unit)]; }
  Taken& taken(int unit, int parameter) {
    return of(unit).taken[static_cast<std::size_t>(parameter)];
  }
  const Taken& taken(int unit, int parameter) const {
    return of(unit).taken[static_cast<std::size_t>(parameter)];
  }
  WeightViews& views(int unit) { return views_[static_cast<std::size_t>(unit)]; }
  /// By what the order of streams goes. See NOTE [several streams].
  struct Uses {
    std::vector<StreamUses> gathered;  ///< by unit: who waited for its gather
    std::vector<StreamUses> written;   ///< by unit: who wrote its slice or its secondary shard
    std::vector<StreamUses> slots;     ///< by slot: who read it
    std::vector<int> slot_of;          ///< by unit, where it is gathered; -1: nowhere
  };
  static Uses make_uses(const ModuleLayout& layout);
  void renew_slice(int unit, int slot = -1);
  void bump_weights(int unit);
  void emit_gather(trace::EventKind kind, int unit, int slot);

  const ModuleLayout& layout_;
  Counters& counters_;
  Health& health_;
  const Events& events_;
  comm::Job& world_;
  bool poisons_;
  std::unique_ptr<WeightStore> store_;
  std::deque<Slice> slices_;        ///< by unit
  std::vector<FlatParts> shards_;   ///< by unit
  std::vector<WeightViews> views_;  ///< by unit
  std::vector<OfUnit> of_units_;
  Uses uses_;
  bool is_read_since_fence_ = false;
};

}  // namespace fsdp::engine
