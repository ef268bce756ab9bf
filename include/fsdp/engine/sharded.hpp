// SPDX-License-Identifier: Apache-2.0
/// What fully_shard() returns: the shards, and what one may ask of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/world.hpp"
#include "fsdp/engine/gradients.hpp"
#include "fsdp/engine/report.hpp"
#include "fsdp/engine/shards.hpp"

namespace torch::nn {
class Module;
}

namespace fsdp {

class ShardAccess;
namespace engine {
class Engine;
}

/// Whole weights for as long as it lives: raw pointers and torch::save work inside, edits too when
/// it was made with writeback. Edits include whole weights that torch::load() or set_data() put in
/// their place; where the shards cannot hold one, for its type, shape or device, nothing is written
/// back and the next call throws kInvalidArgument. Move-only; ends with its scope, on each rank by
/// itself, or when the group recovers, then without writing back. Scopes nest.
/// @memory one whole copy of the model, outside of the promise; freed at the end
class FullParameters {
 public:
  FullParameters(FullParameters&&) noexcept;
  FullParameters& operator=(FullParameters&&) = delete;
  ~FullParameters();

 private:
  friend class Sharded;
  FullParameters(std::shared_ptr<engine::Engine> engine, bool writeback);
  std::shared_ptr<engine::Engine> engine_;
  bool writeback_;
  std::uint64_t scope_ = 0;
};

/// A sharded module's other half: the shards, and what one may ask of them.
///
/// *Invariants*: copies refer to the same engine; the module stays usable as long as one lives.
/// *Thread safety*: calls are serialised inside; collectives must be called by every rank.
/// *Example*:
///
///     auto sharded = fsdp::fully_shard(model, world, {.units = fsdp::units_of<Block>()});
///     torch::optim::AdamW optimizer(sharded.parameters(), 3e-4);
///     model->forward(x, y).backward();
///     fsdp::clip_grad_norm_(sharded, 1.0);
///     optimizer.step();
///     optimizer.zero_grad();
class Sharded {
 public:
  explicit Sharded(std::shared_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  /// One 1-D leaf per parameter, possibly empty, in the module's order, of the dtype that the
  /// optimizer updates (see MixedPrecision): a view of this rank's flat shard. Its grad, by default
  /// the mean over ranks, is there when backward() returns, if any rank used the parameter in a way
  /// that gives it one. It is reset when the grad of the module's tensor is (module->zero_grad());
  /// when a gradient was assigned there, asking for it throws kInvalidArgument. A parameter may be
  /// frozen or unfrozen between steps, on all ranks alike, by requires_grad_() of the module's
  /// tensor or of its shard, each of which follows the other from the next forward on; one that was
  /// frozen when it was sharded gets its buffers then. Build optimizers on these.
  ///
  /// Write a shard by any operator. Of one that gets other memory, by set_data() or set_(), the
  /// values go into the unit's shard before the next forward, and the tensor shows that again; what
  /// was passed to set_data() is not looked at any more. That throws kInvalidArgument, from
  /// forward, for values of another size or type, and where something still shows the shard's own
  /// memory, such as data() that is kept to be swapped back: it would change. Keep a clone().
  std::vector<at::Tensor> parameters() const;
  /// The same with names, in the same order.
  std::vector<NamedShard> named_parameters() const;
  /// The same in groups, rule.groups of them, for optimizers of LibTorch and of fsdp::optim:
  ///
  ///     auto groups = sharded.param_groups(fsdp::decay_rule());
  ///     fsdp::optim::AdamW optimizer(sharded, {{groups[0].names, {.weight_decay = 0.1}},
  ///                                            {groups[1].names, {.weight_decay = 0}}});
  ///
  /// A group may be empty. @throws Error kInvalidArgument for a group that the rule does not have
  std::vector<ParameterGroup> param_groups(const GroupRule& rule) const;
  /// The module's buffers, which every rank holds whole; of one that MixedPrecision::buffers casts,
  /// what is saved of it. What is written into that reaches the module before its next forward.
  std::vector<NamedBuffer> named_buffers() const;

  /// Says that shards were written where nothing sees it: through a raw pointer, by a kernel of
  /// one's own. Such writes are right without it wherever gathers read the shards themselves;
  /// needed it is where they read a copy: with MixedPrecision::param, UnitRule::param, Offload,
  /// Strategy::kHybridOptimizer, and for what stays gathered. Write between a step's backward and
  /// the next forward, on all ranks, and call this then. Operators, set_data() and the library's
  /// own optimizers need none of this. @collective as a write of any operator: with shards in
  /// shared memory that were read since backward
  void mark_written();

  /// Forgets all gradients, as `optimizer.zero_grad()` and `module->zero_grad()` do, and those that
  /// set_gradient_sync() has deferred.
  void zero_grad();
  /// Which collectives the backwards that come end with; between backwards, the same on all ranks.
  /// @memory what waits is held by Kind::kDeferred from the first call that defers; the promise
  /// grows by it @throws Error kInvalidArgument inside a backward
  void set_gradient_sync(GradientSync sync);
  /// Gradients that are reduced from now on are the sum over all ranks divided by `divisor`,
  /// instead of Options::gradient_divisor: for a mean over the samples of a whole step, let each
  /// loss be a sum and pass their number. The same on all ranks, until the next call.
  /// @throws Error kInvalidArgument unless it is positive and finite, kMismatch from the next
  /// backward, on all ranks, when ranks passed different ones
  void set_gradient_divisor(GradientDivisor divisor);

  /// Has `hook` called at the end of each backward that reduces gradients: once for each parameter
  /// for which this backward, or one that was deferred to it, has a gradient on any rank, with this
  /// rank's part of the gradient, reduced, divided, and added to what earlier backwards left. The
  /// hook may change it in place, by element: it is what the optimizer reads. For hooks on the full
  /// local gradient, before reduction, use at::Tensor::register_hook() on the module's tensor.
  ///
  /// Hooks run on the thread that called backward(), after all reductions, in the order of
  /// registration, parameters in the module's order; the same parameters on all ranks, empty parts
  /// included. A hook must not run the module or backward. It may use collectives if it does so on
  /// all ranks. What it throws leaves backward() on this rank and counts as the rank's failure: the
  /// others throw kPeerFailed with its text where they next talk to this one, and all go on after
  /// World::recover(), with no gradients. With a LossScaler, gradients are scaled here.
  /// Local, but to be called on all ranks where that matters to the hook. Returns what
  /// remove_on_reduced() takes.
  std::uint64_t on_reduced(ReducedHook hook);
  /// From the next backward on, it is not called any more. @throws Error kNotFound
  void remove_on_reduced(std::uint64_t id);

  /// Takes the place of a part of the model that this rank leaves out of a step while other ranks
  /// run it: an optional branch, an expert without tokens. Call it where the forward of `module`
  /// (any part of the sharded module, on any rank the same) would stand, and add what it returns,
  /// a scalar zero, to the loss: the units' weights are gathered here and in backward, and their
  /// gradients reduced, as on the ranks that run it. Taking part means "unused here": this rank
  /// adds zero to the gradients, and where no rank used a parameter it gets none, as in one
  /// process: no weight decay, no step counted. The module's units are touched as in the last
  /// forward of this rank that ran it or took part, else in the module's order; UnitRule::optional
  /// must hold for them. Ranks whose run differs from that (an unused weight, other units in
  /// between, no gradients) meet in different collectives and throw; run the module on a small
  /// input times zero then. One call stands for all runs of the module in immediate succession.
  /// @collective the units' all-gathers, in step with the ranks that run the module; backward: one
  /// all-gather and one reduce-scatter of each @memory in backward, zero gradients of one unit
  /// @throws Error kInvalidArgument when the module has no weight, one that is not of this Sharded,
  /// or one of a unit that is not optional
  at::Tensor participate(const torch::nn::Module& module) const;
  /// The same for the unit called `unit`, as Report::units name it. @throws Error kNotFound
  at::Tensor participate(const std::string& unit) const;

  /// Gathers all units, in their shards' type: inside, the module's weights have it, and operators
  /// compute in it. With `writeback`, edits made inside reach the shards (each rank keeps its
  /// slice of its own edit, so make the same edit on all ranks).
  /// Shards do not change meanwhile: a step, a swap of averages or a load is refused.
  /// @collective all ranks @blocks @throws Error kInvalidArgument inside a backward, or with
  /// writeback inside a scope without
  FullParameters full_parameters(bool writeback = false) const;

  /// Frees every gathered weight that no operator is using, for example after the very first
  /// evaluation, whose end no recorded order foretells. Local, but a gather ahead is waited for:
  /// call it on all ranks.
  void reshard();

  /// All that one may ask: units, counters, the promise, and what the ledger holds. Local.
  Report report() const;
  /// Report::counters start from zero.
  void reset_counters();
  World world() const;
  /// Whether a tensor is a parameter of this module that lives in shards, or shares its storage.
  bool is_sharded(const at::Tensor& tensor) const;

  /// For what reads or writes shards itself: an optimizer, an average, a checkpoint.
  std::shared_ptr<ShardAccess> shard_access() const;

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace fsdp
