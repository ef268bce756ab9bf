// SPDX-License-Identifier: Apache-2.0
/// Over which ranks weights, gradients and optimizer state are spread.
/// docs/how-to/choose-a-strategy.md compares the strategies in bytes. Integers only.
#pragma once

namespace fsdp {

/// How a unit is spread. N ranks are r replicas of s ranks each, see DeviceMesh; without a mesh
/// s = N. Bytes below are those of the unit's weights, gradients and one moment together.
enum class Strategy {
  /// ZeRO-3: each rank holds 1/N; weights are gathered for forward, freed, gathered for backward.
  kFullShard,
  /// ZeRO-2: kFullShard with UnitRule::keep_gathered for all units: weights stay gathered from
  /// forward to the end of backward. One gather less, one whole copy more.
  kShardGrad,
  /// Data parallel: each rank holds all; nothing is gathered, gradients are all-reduced.
  kReplicate,
  /// HSDP: kFullShard among the s ranks of a replica; the r replicas hold the same and all-reduce
  /// the gradients of their 1/s. Gathers stay inside a replica. Needs Options::mesh.
  kHybrid,
  /// As kHybrid, but gradients and optimizer state are held at 1/N: replicas reduce-scatter their
  /// 1/s, and after an optimizer step each unit's new weights are all-gathered over the replicas,
  /// once. Needs Options::mesh.
  kHybridOptimizer,
  /// ZeRO++ hpZ: kFullShard, but each rank keeps 1/s of the gathered weights from forward on, so
  /// that the gather of backward stays inside a replica. Needs Options::mesh. With weights in
  /// memory that ranks share (Store::kAliased) a gather moves nothing: then it is kFullShard.
  kSecondaryShard,
};
inline constexpr int kStrategies = 6;

/// "full-shard", "shard-grad", "replicate", "hybrid", "hybrid-optimizer", "secondary-shard".
const char* to_string(Strategy strategy);

}  // namespace fsdp
