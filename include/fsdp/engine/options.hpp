// SPDX-License-Identifier: Apache-2.0
/// What fully_shard() is asked for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/engine/gradients.hpp"
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
  kAliased,  ///< memory that all ranks of one host share (threads, shm, gloo): a gather is
             ///< agreement, without a copy and without slots; kUnsupported elsewhere, and for
             ///< modules that are not on the CPU
};

/// An exception for some units. What it leaves empty stays as Options have it; of several rules
/// that say something else about one unit, the first counts. Example, a head that stays gathered
/// and is computed in float32:
///
///     {.units = units_listed({"head"}), .keep_gathered = true, .param = at::kFloat}
struct UnitRule {
  /// Which units; each is asked for by its module, the root by "". One that fits no unit, or lists
  /// a path that is none, is a mistake and throws kNotFound. Parameters that
  /// Options::replicate_below takes out of a unit keep its `param` only.
  Units units = {};
  /// How they are spread. Those that need Options::mesh take it from there.
  std::optional<Strategy> strategy = {};
  /// Whether they stay gathered from their first use to the end of backward (of the pass, in
  /// evaluation), each in a slot of its own: a gather less per step. Default: what the strategy
  /// does, which is no, except with kShardGrad. kReplicate gathers nothing, so this changes nothing
  /// there.
  std::optional<bool> keep_gathered = {};
  /// Whether a rank may leave them out of a step, by Sharded::participate(). Backward gathers them
  /// also where no operator takes their weights, so that it is the same on ranks that run them and
  /// on ranks that do not. Default: no. Cost: that gather, and the unit is freed at the next unit's
  /// touch instead of after its own last one.
  std::optional<bool> optional = {};
  /// What their floating-point weights are gathered as, instead of MixedPrecision::param. Inside of
  /// MixedPrecision::full_precision nothing changes.
  std::optional<at::ScalarType> param = {};
};

/// "units of type Block: strategy replicate, stay gathered". The same on all ranks is part of what
/// fully_shard() checks.
std::string to_string(const UnitRule& rule);

/// How much memory buys how much speed.
struct MemoryOptions {
  /// How many units may be gathered ahead of the one that computes. 0 turns prefetching off. Each
  /// costs one more gather slot.
  int prefetch = 1;
  /// More gather slots than 1 + prefetch, for operators that take weights of several units at once.
  int extra_slots = 0;
  /// Slices of a unit are multiples of this many bytes, rounded down to whole elements. 0 means one
  /// element. Costs less than this many bytes of padding per rank and unit. Default 128: NCCL's
  /// all-gather falls 12x when a slice is not a multiple of 16 bytes.
  std::int64_t align_bytes = 128;
  Store store = Store::kAuto;
  /// Keep shards, gradients and optimizer state in the host's memory. Changes nothing where the
  /// module is on the CPU. Not with Store::kAliased; kAuto is kSlots then.
  std::optional<Offload> offload = {};
  /// Optimizer state per parameter element, for the promise: 2 for Adam, 1 for momentum, 0 for SGD.
  /// A forecast for LibTorch's optimizers; those of fsdp::optim put what they hold in its place.
  int moments = 2;
};

/// What is printed, observed and provoked. Ranks may differ.
struct DebugOptions {
  /// Print the promise to standard error on rank 0 before the first training step.
  bool print_promise = true;
  /// Fill freed weights with NaN (kSlots on CPU), so that a use after free shows. For tests;
  /// costs a pass over memory.
  bool poison_freed = false;
  /// Called with each event of the engine, in order, under the engine's lock: it must not call the
  /// library. For tests and timelines.
  std::function<void(const trace::Event&)> observer = {};
};

/// How to shard. All ranks must pass the same, except for `debug`.
struct Options {
  // --- Affects speed and memory. Results stay the same, up to the order in which replicas are
  // summed and to UnitRule::param.

  /// Where weights are gathered and operators run; default: where the parameters are. A module on
  /// the CPU, or a deferred one, goes there unit by unit, so that it never has to fit there whole;
  /// its buffers go there, and ignored parameters stay where they are. One without an index is the
  /// calling thread's current device of that type. The type is the same on all ranks.
  std::optional<c10::Device> device = {};
  /// Which modules become units. Default: the whole module is one unit.
  Units units = {};
  /// How units are spread over the ranks.
  Strategy strategy = Strategy::kFullShard;
  /// Who is whose replica; for the strategies that need to know it, and no others.
  std::optional<DeviceMesh> mesh = {};
  /// Parameters of fewer elements than this are kReplicate, together in one unit, whatever the
  /// strategy: norms and biases then cost no gather, and an all-reduce at the end of backward.
  std::int64_t replicate_below = 0;
  /// Exceptions for single units.
  std::vector<UnitRule> rules = {};
  MemoryOptions memory = {};

  // --- Affects results.

  /// Parameters, by name with `*` for any text, that are left to the program: each rank keeps them
  /// whole, and nothing initialises, reduces or saves them. A pattern must match one.
  std::vector<std::string> ignore = {};
  InitialWeights initial_weights = InitialWeights::kBroadcast;
  /// The types of gathered weights, gradients on their way, results and buffers.
  MixedPrecision precision = {};
  /// What gradients are divided by, until Sharded::set_gradient_divisor() says something else.
  GradientDivisor gradient_divisor = GradientDivisor::kMean;
  /// Skip a step whose gradient norm is not finite, on all ranks: clip_grad_norm_() and LossScaler
  /// name the parameter and forget the gradients, whereupon optimizers change nothing.
  bool skip_non_finite = true;

  // --- Affects neither.

  DebugOptions debug = {};
};

}  // namespace fsdp
