// SPDX-License-Identifier: Apache-2.0
/// Over which ranks weights, gradients and optimizer state are spread, and when gradients travel.
/// docs/how-to/choose-a-strategy.md compares the strategies in bytes. Integers only.
#pragma once

namespace fsdp {

/// How a unit is spread. N ranks are r replicas of s ranks each, see DeviceMesh; without a mesh
/// s = N. Bytes below are those of the unit's weights, gradients and one moment together.
enum class Strategy {
  /// ZeRO-3: each rank holds 1/N; weights are gathered for forward, freed, gathered for backward.
  kFullShard,
  /// ZeRO-2: the same, but weights stay gathered from forward to the end of backward, in memory of
  /// their own. One gather less, one whole copy more.
  kShardGrad,
  /// Data parallel: each rank holds all; nothing is gathered, gradients are all-reduced.
  kReplicate,
  /// HSDP: kFullShard among the s ranks of a replica; the r replicas hold the same and all-reduce
  /// the gradients of their 1/s. Gathers stay inside of a replica. Needs Options::mesh.
  kHybrid,
  /// As kHybrid, but gradients and optimizer state are held at 1/N: replicas reduce-scatter their
  /// 1/s, and after an optimizer step each unit's new weights are all-gathered over the replicas,
  /// once. Needs Options::mesh.
  kHybridOptimizer,
  /// ZeRO++ hpZ: kFullShard, but each rank keeps 1/s of the gathered weights from forward on, so
  /// that the gather of backward stays inside of a replica. Needs Options::mesh. With weights in
  /// memory that ranks share (Store::kAliased) a gather moves nothing: then it is kFullShard.
  kSecondaryShard,
};
inline constexpr int kStrategies = 6;

/// "full_shard", "shard_grad", "replicate", "hybrid", "hybrid_optimizer", "secondary_shard".
const char* to_string(Strategy strategy);

/// Which collectives a backward ends with. Any mixture within one step gives the same gradients;
/// the last backward before the optimizer's step must be kEveryBackward.
enum class GradientSync {
  /// Gradients are reduced over all ranks: Sharded::parameters() have them when backward returns.
  kEveryBackward,
  /// They are reduced inside of a replica and wait there, at 1/s, for a backward with
  /// kEveryBackward: replicas talk once a step. Without replicas the same as kEveryBackward; of
  /// kReplicate units, the same as kDeferAll.
  kDeferReplicate,
  /// Nothing moves: gradients wait whole, one copy of the model's trainable elements.
  kDeferAll,
};

/// What gradients are divided by when they are reduced, unless set_gradient_divisor() says else.
enum class Reduction {
  kMean,  ///< by the number of ranks, whatever the mesh
  kSum,   ///< by nothing
};

}  // namespace fsdp
