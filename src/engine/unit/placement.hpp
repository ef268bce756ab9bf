// SPDX-License-Identifier: Apache-2.0
/// What a strategy comes to for one rank: who gathers with whom, who reduces with whom, and which
/// slices of a unit this rank has.
///
/// NOTE [Slices and who has them]
/// N = r * s ranks, rank = i * s + j is member j of replica i (shard innermost). A unit's flat
/// buffer has N equal slices, whatever the strategy. What a rank gives to a gather is a run of them
/// (its *give*), what its optimizer owns is that run or one slice of it (its *own* part). The s
/// runs of a shard group are the unit.
///
///                       gathers over   gives          owns           outer reduction
///     kFullShard        world          slice rank     the same       -
///     kHybrid           mesh.shard     [j*r, j*r+r)   the same       all-reduce over replicas
///     kHybridOptimizer  mesh.shard     [j*r, j*r+r)   slice j*r+i    reduce-scatter over replicas
///     kReplicate        -              [0, N)         the same       all-reduce over the world
///
/// Of what several ranks own alike, each *answers for* one slice: in norms, counts and files each
/// element is counted on exactly one rank.
#pragma once

#include "fsdp/comm/transport.hpp"
#include "fsdp/engine/strategy.hpp"

namespace fsdp::engine {

/// A run of slices.
struct SliceRun {
  int first = 0;
  int count = 1;
};

struct Placement {
  Strategy strategy = Strategy::kFullShard;
  comm::Transport* shard = nullptr;      ///< null: this rank has the whole unit at rest
  comm::Transport* replicate = nullptr;  ///< null: no other rank gives the same slices; one of
                                         ///< the two is always there, if with this rank alone
  /// kSecondaryShard: whom backward gathers with; null: with `shard`.
  comm::Transport* secondary = nullptr;
  int slices = 1;
  SliceRun give = {};
  SliceRun own = {};
  int answers_for = 0;
  SliceRun kept = {};  ///< what `secondary` gathers

  /// No gather, no slot: operators read the shard itself.
  bool is_resident() const { return shard == nullptr; }
  /// Gradients are reduced over the shard group and then over the replicas.
  bool has_both_stages() const { return shard != nullptr && replicate != nullptr; }
  /// The optimizer owns a part of what this rank gives: the rest comes from the replicas.
  bool is_refreshed() const { return own.count < give.count; }
};

/// The two groups of a mesh, null where they are not needed.
struct Groups {
  comm::Transport* shard = nullptr;
  comm::Transport* replicate = nullptr;
};

/// Whether the strategy has to know who is whose replica.
bool needs_mesh(Strategy strategy);

Placement make_placement(Strategy strategy, comm::Transport& world, const Groups& mesh = {});

}  // namespace fsdp::engine
