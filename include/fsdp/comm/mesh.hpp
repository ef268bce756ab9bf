// SPDX-License-Identifier: Apache-2.0
/// The ranks of a job as a grid with two named axes: who shards a model together, and who holds a
/// replica of the same shard. What hybrid strategies are told to run on.
#pragma once

#include <string>

#include "fsdp/comm/world.hpp"

namespace fsdp {

/// A grid of replicate x shard ranks: rank = replica_index * shard_size + shard_index. Neighbours
/// shard, so with as many shards as a host has ranks each host holds a whole replica.
///
/// *Invariants*: replicate_size() * shard_size() is world().size(). An axis of all ranks is the
/// world itself; an axis of one rank is an identity that sends nothing. *Thread safety*: copyable;
/// copies share their communicators, used by one thread at a time together with the world's.
/// *Example*:
///
///     fsdp::DeviceMesh mesh(world, {.replicate = 2, .shard = 4});
///     mesh.shard().barrier();  // of the four ranks that hold one replica
class DeviceMesh {
 public:
  struct Sizes {
    int replicate = 1;
    int shard = 1;
  };

  /// Same sizes on all ranks. Costs one all-gather and, unless an axis is trivial, a split of the
  /// world (comm::Communicator::split).
  /// @collective all ranks of `world` @blocks
  /// @throws Error on all ranks: kInvalidArgument naming both numbers unless the sizes are positive
  /// and their product is the world's size; kMismatch when a rank asks for another mesh;
  /// kUnsupported for a mesh of two real axes over `c10d`
  DeviceMesh(const World& world, Sizes sizes);
  DeviceMesh(const World& world, int replicate, int shard)
      : DeviceMesh(world, Sizes{.replicate = replicate, .shard = shard}) {}

  const World& world() const { return world_; }
  /// The ranks that gather a replica's weights from each other, this rank among them.
  const World& shard() const { return shard_; }
  /// The ranks that hold the same shard as this one.
  const World& replicate() const { return replicate_; }

  int shard_size() const { return sizes_.shard; }
  int replicate_size() const { return sizes_.replicate; }
  int shard_index() const { return world_.rank() % sizes_.shard; }
  int replica_index() const { return world_.rank() / sizes_.shard; }

  /// "replicate 2 x shard 4".
  std::string describe() const;

 private:
  World world_;
  Sizes sizes_;
  World shard_;
  World replicate_;
};

}  // namespace fsdp
