// SPDX-License-Identifier: Apache-2.0
/// What fully_shard() is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/engine/offload.hpp"
#include "fsdp/engine/precision.hpp"
#include "fsdp/engine/strategy.hpp"
#include "fsdp/engine/units.hpp"
#include "fsdp/trace/event.hpp"

namespace fsdp {

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

}  // namespace fsdp
