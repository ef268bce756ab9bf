// SPDX-License-Identifier: Apache-2.0
/// Where gradients land and are reduced: each parameter's gradient is copied into its unit's reduce
/// buffer as soon as autograd has it; a complete buffer is reduced into the gradient shard.
///
/// NOTE [The way of a gradient]
///
///     autograd -> reduce buffer [whole] -> inner: reduce-scatter, -> outer: over the replicas
///                    ^  added              over the shard group       |
///                    |                     |                          v
///                 deferred, whole          partial, 1/s  ---->  gradient shard
///                 (kDeferAll)              (kDeferReplicate)
///
/// Either stage is missing where its group is: see NOTE [Slices and who has them]. The last stage
/// divides, once, and adds to what the gradient shard has. The outer all-reduce of replicas is a
/// reduce-scatter of sub-slices and an all-gather of the sums, so that all replicas get the same
/// bits. What a rank defers is added to its next reduction, so any mixture of backwards gives the
/// sum of all. Where gradient shards live on the host, one more step follows: see NOTE [The way
/// home].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "engine/sink/grad_home.hpp"
#include "engine/sink/presence.hpp"
#include "engine/unit/bundle.hpp"
#include "engine/unit/flat_parts.hpp"
#include "engine/unit/module_layout.hpp"
#include "engine/unit/stream_uses.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// *Invariants*: reductions start and end in the same order on all ranks; one bundle's at a time is
/// in flight. Gradients accumulate until the shards' grads are reset. *Thread safety*: under the
/// engine's lock.
class GradSink {
 public:
  /// Layout and shards outlive it.
  GradSink(const comm::Link& world, const ModuleLayout& layout,
           const std::vector<FlatParts>& shards, memory::Ledger& ledger, Counters& counters);
  ~GradSink();
  GradSink(const GradSink&) = delete;
  GradSink& operator=(const GradSink&) = delete;

  /// Makes gradient shards known to the dispatcher, also those that come to be later.
  void connect(std::weak_ptr<TouchTarget> target);

  /// What was frozen or unfrozen counts from here on; makes what units that train now and have
  /// never done so need. Returns whether it made anything. Between backwards. Local.
  bool follow_requires_grad();
  /// The module's tensor and the shard of a parameter require grad alike: whichever of the two was
  /// frozen or unfrozen, the other follows.
  void follow_requires_grad(int unit, int parameter);
  /// Whether a parameter of the unit required grad then.
  bool trains(int unit) const { return of(unit).trains; }

  void set_sync(GradientSync sync);
  GradientSync sync() const { return sync_; }
  void set_divisor(double divisor) { divisor_ = divisor; }
  double divisor() const { return divisor_; }
  /// Whether this backward leaves the gradients of a bundle whole and sends nothing.
  bool defers(int bundle) const;
  /// Whether gradients wait for a backward to reduce them.
  bool has_deferred() const;

  void open(int bundle, int buffer);
  /// Whether every parameter of the bundle that requires grad has one since open().
  bool is_complete(int bundle) const;
  /// Copies `grad` to its place, or adds it when one came before; any layout, also sparse. Of a
  /// bundle that defers, the place is the whole accumulator, else the open buffer.
  void collect(int unit, int parameter, const at::Tensor& grad);
  /// In place of a gradient, where this rank does not use the parameter: zeros, which count for
  /// is_complete() and are none for hand_out().
  void stand_in(int unit, int parameter);
  /// Zeros what did not come, adds what was deferred and issues the inner reductions.
  /// @collective the shard group
  void start_reduce(int bundle, int buffer);
  /// Ends them; the outer reductions start, unless this backward defers them, and go on while the
  /// next bundle's gradients come.
  /// @collective the replicas @blocks
  void wait_reduce(int bundle);
  /// After all reductions of a backward that deferred nothing: parameters for which any rank had a
  /// gradient get theirs. @collective all ranks @blocks
  void hand_out();
  /// Whether the last hand_out() had a gradient for the parameter.
  bool was_reduced(int unit, int parameter) const {
    return of(unit).arrivals[static_cast<std::size_t>(parameter)].was_reduced;
  }
  /// After a backward that handed nothing out: what was reduced is in the gradient shards. @blocks
  void bring_home();
  /// What was collected for a backward that died is no gradient. @collective the replicas
  void drop_collected();

  /// Gradients that the user has put in the place of shards' gradients, or of their memory, are in
  /// the gradient shards.
  void take_over();
  /// Forgets all gradients, also those that wait.
  void zero();
  /// Of one parameter.
  void forget(int unit, int parameter);
  /// Makes it zero where it is; what waits is forgotten.
  void zero(int unit, int parameter);
  /// The same, and those on their way: their collectives are void.
  void start_over();

  /// By position among the module's parameters: the first one whose gradient is not finite for what
  /// this rank has added to it. -1 for none.
  std::int64_t first_bad_contribution() const;
  /// What ranks tell each other when gradients are handed out.
  Presence& presence() { return presence_; }

  /// By unit; undefined where no parameter has ever trained.
  const std::vector<FlatParts>& grads() const { return grads_; }
  const FlatParts& grads(int unit) const { return grads_[static_cast<std::size_t>(unit)]; }
  /// Memory in which `unit` is whole in its shards' type, to use before training: [padded_numel].
  /// The sink's own where that is large enough.
  at::Tensor spare_memory(int unit) const;

 private:
  /// What came of a parameter's gradient on this rank.
  struct Arrival {
    int fired = 0;             ///< gradients since the reduce buffer was opened
    bool is_used = false;      ///< one of them does not stand in
    bool is_deferred = false;  ///< a part of it waits whole for a later reduction
    bool was_reduced = false;
    bool requires_grad = false;  ///< the module's tensor and the shard, when last looked at
  };
  /// What a gradient shard has that was not handed out, as bits: a reduction adds to either.
  static constexpr char kWaits = 1;  ///< of earlier backwards, which left it to a later one
  static constexpr char kOfThisBackward = 2;  ///< which is no gradient if this backward dies
  /// A unit's gradients on their way.
  struct OfUnit {
    std::vector<Arrival> arrivals;  ///< by parameter
    bool trains = false;
    std::unique_ptr<comm::Work> work = {};  ///< of its reduction's first stage
    at::Tensor deferred = {};               ///< whole; undefined until needed
    at::Tensor partial = {};                ///< [slice_numel]; likewise
    bool has_partial = false;
    char has_sum = 0;  ///< in the gradient shard
    /// The first of which this rank has added a gradient that is not finite to those that are
    /// there.
    int bad_parameter = -1;
  };
  /// A reduction over replicas: a reduce-scatter, then for all but kHybridOptimizer an all-gather.
  struct Outer {
    int unit = 0;
    std::unique_ptr<comm::Work> work = {};
    bool is_gathering = false;
  };

  /// Where the last stage of a reduction ends, and whether it adds to what is there.
  struct Destination {
    at::Tensor dst;  ///< [shard_numel()]
    bool accumulate;
  };

  const Unit& at(int unit) const { return layout_.at(unit); }
  OfUnit& of(int unit) { return of_units_[static_cast<std::size_t>(unit)]; }
  const OfUnit& of(int unit) const { return of_units_[static_cast<std::size_t>(unit)]; }
  const FlatParts& shards(int unit) const { return shards_[static_cast<std::size_t>(unit)]; }
  /// What `unit` collects in when its bundle has buffer `buffer`: [padded_numel].
  at::Tensor buffer_view(int unit, int buffer) const;
  at::Tensor partial_view(int unit) const;
  /// Of a bundle that is collected whole, or in its reduce buffer.
  StreamUses& collected(int bundle) { return collected_[static_cast<std::size_t>(bundle)]; }
  void begin_collecting(int bundle, bool adds);
  bool make_room();
  void make_buffers();
  void make_deferred();
  void reserve_staging();
  void complete(int unit, at::Tensor& flat);
  void note_bad(int unit, int parameter);
  bool prepare_shard(int unit);
  void begin_last_stage(int bundle);
  Destination destination(int unit);
  at::Tensor reduced(int unit) const;
  void last_stage_ended(int unit);
  void start_inner(int unit, const at::Tensor& flat);
  std::unique_ptr<comm::Work> start_outer(int unit, const at::Tensor& src);
  static at::Tensor answered_part(const Unit& unit, const at::Tensor& shard);
  void advance_outer();
  void forget_waiting(int unit, int parameter);
  void enter(memory::Kind kind, std::int64_t bytes);

  comm::Transport& world_;
  const ModuleLayout& layout_;
  const std::vector<FlatParts>& shards_;
  memory::Ledger& ledger_;
  Counters& counters_;
  std::weak_ptr<TouchTarget> target_;
  std::vector<FlatParts> grads_;  ///< by unit
  std::vector<OfUnit> of_units_;
  Presence presence_;
  GradientSync sync_ = GradientSync::kEveryBackward;
  double divisor_ = 1.0;
  bool has_deferred_ = false;  ///< and not all of it was forgotten: see has_deferred()

  Places places_;                    ///< of gradients in a reduce buffer
  std::vector<at::Tensor> buffers_;  ///< the ring, then those of one bundle
  Places partial_places_;
  /// For the partials of two bundles: one reduces them over the replicas, the next makes its own.
  std::array<at::Tensor, 2> partial_buffers_;
  std::size_t next_partial_ = 0;
  std::vector<int> buffer_of_;  ///< by bundle, -1 when it has none
  std::vector<Outer> outer_;    ///< under way over the replicas
  // See NOTE [several streams].
  std::vector<StreamUses> collected_;    ///< by bundle: who put its gradients where they are
  std::vector<StreamUses> buffer_uses_;  ///< by buffer: who waited for its last reduction
  StreamUses reduced_;                   ///< who waited for reductions
  std::unique_ptr<GradHome> home_;       ///< null: reductions end in the gradient shards
  std::map<comm::Transport*, std::int64_t> staging_;  ///< what was reserved for, in bytes
  memory::Bytes entered_;
};

}  // namespace fsdp::engine
