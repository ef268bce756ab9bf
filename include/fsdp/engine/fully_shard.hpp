// SPDX-License-Identifier: Apache-2.0
/// Shards a module's parameters over all ranks and trains it as if nothing had happened. The module
/// keeps its type, its members and its forward; what changes is where its weights live. See
/// docs/explanation/life-of-a-parameter.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/engine/offload.hpp"
#include "fsdp/engine/precision.hpp"
#include "fsdp/engine/strategy.hpp"
#include "fsdp/engine/units.hpp"
#include "fsdp/memory/ledger.hpp"
#include "fsdp/trace/event.hpp"

namespace torch::jit {
struct Module;
}

namespace fsdp {

namespace engine {
class Engine;
}

/// How all ranks come to start from the same weights.
enum class InitialWeights {
  kBroadcast,   ///< rank 0's weights and buffers go to all ranks, unit by unit
  kCheckEqual,  ///< weights must already hold the same bits; throws kMismatch naming the first that
                ///< does not. Buffers are left alone
};

/// Where a unit's full weights come to be.
enum class Store {
  kAuto,     ///< kAliased over shm, where all ranks share memory at no cost; else kSlots
  kSlots,    ///< an all-gather into one of (1 + prefetch + extra_slots) buffers
  kAliased,  ///< memory that all ranks of one host share (threads, shm, gloo; CPU): a gather is
             ///< agreement, without a copy and without slots; kUnsupported elsewhere
};

/// How to shard. All ranks must pass the same, but for what is printed and observed.
struct Options {
  /// Which modules become units. Default: the whole module is one unit.
  Units units = {};
  /// How units are spread over the ranks.
  Strategy strategy = Strategy::kFullShard;
  /// Who is whose replica; for the strategies that need to know it, and no others.
  std::optional<DeviceMesh> mesh = {};
  /// Units that stay gathered from forward to the end of backward, as all do with kShardGrad; the
  /// root is asked for as "". Each takes a slot of its own and saves a gather a step.
  Units keep_gathered = {};
  /// Parameters of fewer elements than this are kReplicate, together in one unit, whatever the
  /// strategy: norms and biases then cost no gather, and an all-reduce at the end of backward.
  std::int64_t replicate_below = 0;
  /// Parameters, by name with `*` for any text, that are left to the program: each rank keeps them
  /// whole, and nothing initialises, reduces or saves them. A pattern must match one.
  std::vector<std::string> ignore = {};
  /// What gradients are divided by. See also Sharded::set_gradient_divisor().
  Reduction reduction = Reduction::kMean;
  /// Which of the units a rank may leave out of a step, by Sharded::participate(); the root is
  /// asked for as "". Backward gathers them also where no operator takes their weights, so that it
  /// is the same on ranks that run them and on ranks that do not. Default: none. Cost: that gather,
  /// and the unit is freed at the next unit's touch instead of after its own last one.
  Units optional = {};
  /// How many units may be gathered ahead of the one that computes. 0 turns prefetching off. Each
  /// costs one more gather slot.
  int prefetch = 1;
  /// More gather slots than 1 + prefetch, for operators that take weights of several units at once.
  int extra_slots = 0;
  /// Keep the root unit gathered from its first use to the end of backward (of the pass, in
  /// evaluation), in a slot of its own. Saves a gather where both ends of a model are in the root.
  bool keep_root = false;
  /// Slices of a unit are multiples of this many bytes, rounded down to whole elements. 0 means one
  /// element. Costs less than this many bytes of padding a rank and unit. Default 128: NCCL's
  /// all-gather falls 12x when a slice is not a multiple of 16 bytes.
  std::int64_t align_bytes = 128;
  InitialWeights initial_weights = InitialWeights::kBroadcast;
  /// Skip a step whose gradient norm is not finite, on all ranks: clip_grad_norm_() and LossScaler
  /// name the parameter and forget the gradients, upon which optimizers change nothing.
  bool skip_non_finite = true;
  /// The types of gathered weights, gradients on their way, results and buffers.
  MixedPrecision precision = {};
  Store store = Store::kAuto;
  /// Keep shards, gradients and optimizer state in the host's memory. Changes nothing where the
  /// module is on the CPU. Not with Store::kAliased; kAuto is kSlots then.
  std::optional<Offload> offload = {};
  /// Optimizer state per parameter element, for the promise: 2 for Adam, 1 for momentum, 0 for SGD.
  /// A forecast for LibTorch's optimizers; those of fsdp::optim put what they hold in its place.
  int moments = 2;
  /// Print the promise to standard error on rank 0 before the first training step.
  bool print_promise = true;
  /// Fill freed weights with NaN (kSlots on CPU), so that a use after free shows. For tests;
  /// costs a pass over memory.
  bool poison_freed = false;
  /// Called with each event of the engine, in order, under the engine's lock: it must not call the
  /// library. For tests and timelines.
  std::function<void(const trace::Event&)> observer = {};
};

/// A parameter of the module as this rank stores it.
struct NamedShard {
  std::string name;                  ///< the module's name for it; of tied ones, the first
  at::Tensor parameter;              ///< the module's tensor; any operator that takes it gathers it
  at::Tensor shard;                  ///< 1-D, possibly empty: this rank's part; a leaf
  std::int64_t begin = 0;            ///< its first element's position in the flattened parameter
  std::vector<std::int64_t> sizes;   ///< shape of the whole parameter
  std::vector<std::string> aliases;  ///< other names of the same parameter (tied weights)
  /// Of the elements in `shard`, those that this rank answers for. Several ranks may hold an
  /// element, exactly one of the world answers for it: add up norms and write files over these.
  std::int64_t answered_begin = 0;  ///< position in `shard`
  std::int64_t answered_numel = 0;
};

/// See Sharded::on_reduced().
using ReducedHook = std::function<void(const NamedShard& parameter, at::Tensor grad)>;

/// A unit's shard as an optimizer that runs over whole ones sees it. Padding is zero in `shard` and
/// `grad`, and must stay so.
struct FlatShard {
  at::Tensor shard;  ///< 1-D
  at::Tensor grad;   ///< of the same size; undefined where no parameter of the unit has one
  bool trains;       ///< a parameter of it requires grad now; that may change between steps
  std::int64_t answered_begin;  ///< as in NamedShard, padding included
  std::int64_t answered_numel;
};

/// A buffer of the module; every rank holds it whole.
struct NamedBuffer {
  std::string name;
  at::Tensor buffer;
};

/// What happened since the counters were reset. Logical bytes leave padding out.
struct Counters {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t reduce_bytes = 0;
  std::int64_t padding_bytes = 0;       ///< moved beside the logical bytes, gathers and reductions
  std::int64_t secondary_gathers = 0;   ///< those of the gathers that came from secondary shards
  std::int64_t replica_reductions = 0;  ///< units reduced over replicas
  std::int64_t replica_bytes = 0;       ///< logical; of an all-reduce, twice this rank's slice
  std::int64_t refreshes = 0;           ///< gathers of new weights over replicas
  std::int64_t refresh_bytes = 0;
  std::int64_t touches = 0;          ///< operators that took a weight
  std::int64_t casts = 0;            ///< of a shard into the type that operators take
  std::int64_t transfers = 0;        ///< between host and device, see Options::offload
  std::int64_t transfer_bytes = 0;   ///< padding included
  std::int64_t prefetch_misses = 0;  ///< touches that the recorded order did not predict
};

/// A unit as a report shows it.
struct UnitInfo {
  std::string name;
  Strategy strategy = Strategy::kFullShard;
  std::int64_t numel = 0;              ///< logical elements
  std::int64_t padded_numel = 0;       ///< size() equal slices
  std::int64_t shard_numel = 0;        ///< of them in this rank's shard
  std::int64_t itemsize = 0;           ///< bytes of an element of the shards
  std::int64_t gathered_itemsize = 0;  ///< and of the weights that operators take
  int parameters = 0;
  bool is_unsharded = false;
};

/// Whole weights for as long as it lives: raw pointers and torch::save work inside, edits too when
/// it was made with writeback. Move-only; ends with its scope, on each rank by itself, or when the
/// group recovers, then without writing back. Scopes nest.
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
  /// that gives it one. A parameter may be frozen or unfrozen between steps, on all ranks alike, by
  /// requires_grad_() of the module's tensor; one that was frozen when it was sharded gets its
  /// buffers then. Build optimizers on these.
  std::vector<at::Tensor> parameters() const;
  /// The same with names, in the same order.
  std::vector<NamedShard> named_parameters() const;
  /// The module's buffers, which every rank holds whole; of one that MixedPrecision::buffers casts,
  /// what is saved of it. What is written into that reaches the module before its next forward.
  std::vector<NamedBuffer> named_buffers() const;

  /// Whole flat shards, one per unit, padding included, and their gradients (undefined where no
  /// parameter of the unit has one). For optimizers that run over whole shards: padding is zero in
  /// both, and must stay so.
  std::vector<at::Tensor> flat_shards() const;
  std::vector<at::Tensor> flat_grad_shards() const;
  /// The same with what belongs to each.
  std::vector<FlatShard> flats() const;

  /// Forgets all gradients, as `optimizer.zero_grad()` does, and those that set_gradient_sync()
  /// has deferred.
  void zero_grad();
  /// Which collectives the backwards that come end with; between backwards, the same on all ranks.
  /// @memory what waits is held by Kind::kDeferred from the first call that defers; the promise
  /// grows by it @throws Error kInvalidArgument inside of a backward
  void set_gradient_sync(GradientSync sync);
  /// Gradients that are reduced from now on are the sum over all ranks divided by `divisor`,
  /// whatever the strategy and the mesh: for a mean over the samples of a whole step, let each loss
  /// be a sum and pass their number. The same on all ranks, until the next call.
  /// @throws Error kInvalidArgument unless it is positive and finite, kMismatch from the next
  /// backward, on all ranks, when ranks passed different ones
  void set_gradient_divisor(double divisor);

  /// Has `hook` called at the end of each backward that reduces gradients: once for each parameter
  /// for which this backward, or one that was deferred to it, has a gradient on any rank, with this
  /// rank's part of the gradient, reduced, divided, and added to what earlier backwards left. The
  /// hook may change it in place, by element: it is what the optimizer reads. For hooks on the full
  /// local gradient, before reduction, use Tensor::register_hook() on the module's tensor.
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
  /// gradients reduced, as on the ranks that run it. This rank's gradients of them are zero. The
  /// module's units are touched as in the last forward of this rank that ran it or took part, else
  /// in the module's order; they must be Options::optional. Ranks whose run differs from that (an
  /// unused weight, other units in between, no gradients) meet in different collectives and throw;
  /// run the module on a small input times zero then. One call stands for all runs of the module in
  /// immediate succession.
  /// @collective the units' all-gathers, in step with the ranks that run the module; backward: one
  /// all-gather and one reduce-scatter of each @memory in backward, zero gradients of one unit
  /// @throws Error kInvalidArgument when the module has no weight, one that is not of this Sharded,
  /// or one of a unit that is not optional
  at::Tensor participate(const torch::nn::Module& module) const;
  /// The same for the unit called `unit`, as units() names it. @throws Error kNotFound
  at::Tensor participate(const std::string& unit) const;

  /// Gathers all units, in their shards' type: inside, the module's weights have it, and operators
  /// compute in it. With `writeback`, edits made inside reach the shards (each rank keeps its
  /// slice of its own edit, so make the same edit on all ranks).
  /// @collective all ranks @blocks @throws Error kInvalidArgument inside of a backward, or with
  /// writeback inside of a scope without
  FullParameters full_parameters(bool writeback = false) const;

  /// Frees every gathered weight that no operator is using, for example after the very first
  /// evaluation, whose end no recorded order foretells. Local, but a gather ahead is waited for:
  /// call it on all ranks.
  void reshard();

  std::vector<UnitInfo> units() const;
  /// Elements gathered at this moment, logical.
  std::int64_t unsharded_numel() const;
  Counters counters() const;
  void reset_counters();
  /// What this rank will hold at its peak, by kind: known when sharding, and kept exactly. Moments
  /// are those of the fsdp::optim optimizers that were built on this, before that what
  /// Options::moments says; full_parameters() comes on top.
  memory::Bytes promise() const;
  /// What it holds now and has held. Moments are there when the optimizer enters them, as those of
  /// fsdp::optim do.
  const memory::Ledger& ledger() const;
  memory::Ledger& ledger();
  World world() const;
  /// Whether a tensor is a parameter of this module that lives in shards, or shares its storage.
  bool is_sharded(const at::Tensor& tensor) const;

  std::shared_ptr<engine::Engine> engine() const { return engine_; }

 private:
  std::shared_ptr<engine::Engine> engine_;
};

/// Shards `module` over all ranks of `world`. The module's tensors keep their identity; from now on
/// an operator that takes a weight gathers it first. Uses one process-wide dispatcher fallback for
/// DispatchKey::DeferredInit.
/// @collective all ranks, with the same architecture and options
/// @blocks until every rank is here
/// @memory shards + slots + reduce buffers, see Sharded::promise(); the module's own weights go
/// unit by unit
/// @throws Error kInvalidArgument when the module has no parameters, when they lie on several
/// devices, when something outside the module holds a weight's memory, when one has a gradient,
/// is sharded already or is no leaf, when the strategy has no mesh and needs one, or the reverse,
/// or the mesh is of another world, when an Embedding has max_norm, when a weight was assigned to
/// a member instead of tied, or for a negative option; kNotFound for a path of units_listed() that
/// is not there or a pattern of Options::ignore without a match; kUnsupported for a parameter that
/// is not strided or is complex and trains, for Store::kAliased where ranks share no memory, or
/// with Options::offload; kMismatch, on all ranks, naming the first parameter or option in which
/// ranks differ
Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const World& world,
                    Options options = {});

/// The same for a module holder, such as `torch::nn::Sequential` or a `TORCH_MODULE` type.
template <class Holder>
  requires requires { typename Holder::ContainedType; }
Sharded fully_shard(const Holder& holder, const World& world, Options options = {}) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(holder.ptr()), world,
                     std::move(options));
}

/// The same for a TorchScript module; units are chosen by name.
Sharded fully_shard(const torch::jit::Module& module, const World& world, Options options = {});

/// Ties `name` of `to` to `name` of `from` so that both names hold one tensor: the registry and,
/// for torch::nn layers, the member. Call before sharding and before building an optimizer.
/// @throws Error kInvalidArgument when shapes differ, kNotFound when there is no such parameter
void tie_weights(torch::nn::Module& from, const std::string& from_name, torch::nn::Module& to,
                 const std::string& to_name);

}  // namespace fsdp
