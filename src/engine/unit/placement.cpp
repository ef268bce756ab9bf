// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/placement.hpp"

#include "fsdp/base/error.hpp"

namespace fsdp {

const char* to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::kFullShard: return "full-shard";
    case Strategy::kShardGrad: return "shard-grad";
    case Strategy::kReplicate: return "replicate";
    case Strategy::kHybrid: return "hybrid";
    case Strategy::kHybridOptimizer: return "hybrid-optimizer";
    case Strategy::kSecondaryShard: return "secondary-shard";
  }
  return "unknown strategy";
}

namespace engine {

namespace {

comm::Transport* unless_alone(comm::Transport* group) {
  return group->size() > 1 ? group : nullptr;
}

}  // namespace

bool needs_mesh(Strategy strategy) {
  return strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
         strategy == Strategy::kSecondaryShard;
}

Placement make_placement(Strategy strategy, comm::Transport& world, const Groups& mesh) {
  Placement placement;
  placement.strategy = strategy;
  placement.slices = world.size();
  const SliceRun slice_of_rank{.first = world.rank()};
  const bool has_mesh = mesh.shard != nullptr && mesh.replicate != nullptr;
  switch (strategy) {
    case Strategy::kReplicate:
      placement.replicate = &world;
      placement.give = placement.own = {.first = 0, .count = world.size()};
      placement.answers_for = world.rank();
      return placement;
    case Strategy::kHybrid:
    case Strategy::kHybridOptimizer: {
      FSDP_ASSERT(has_mesh, to_string(strategy), " without a mesh");
      const int replicas = mesh.replicate->size();
      placement.shard = unless_alone(mesh.shard);
      placement.replicate =
          placement.shard == nullptr ? mesh.replicate : unless_alone(mesh.replicate);
      placement.give = {.first = mesh.shard->rank() * replicas, .count = replicas};
      placement.answers_for = placement.give.first + mesh.replicate->rank();
      placement.own =
          strategy == Strategy::kHybrid ? placement.give : SliceRun{.first = placement.answers_for};
      return placement;
    }
    case Strategy::kSecondaryShard: {
      FSDP_ASSERT(has_mesh, to_string(strategy), " without a mesh");
      const int replicas = mesh.replicate->size();
      placement.secondary = replicas > 1 ? mesh.shard : nullptr;
      placement.kept = {.first = mesh.shard->rank() * replicas, .count = replicas};
      break;
    }
    case Strategy::kFullShard:
    case Strategy::kShardGrad: break;
  }
  placement.shard = &world;
  placement.give = placement.own = slice_of_rank;
  placement.answers_for = world.rank();
  return placement;
}

}  // namespace engine
}  // namespace fsdp
