// SPDX-License-Identifier: Apache-2.0
/// The ranks of a job as a grid with named axes: who shards a model together, who holds a replica
/// of the same shard, and whatever other kinds of parallelism divide. What hybrid strategies are
/// told to run on.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/comm/world.hpp"

namespace fsdp {

/// One axis of a mesh. The set of names is open; this library reads two, see DeviceMesh.
struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// A grid of ranks, the last axis innermost: with axes a x b, rank = index(a) * size(b) + index(b).
/// Neighbours differ in the last axis, so with "shard" last, and as many shards as a host has
/// ranks, each host holds a whole replica.
///
/// Strategies read "replicate" and "shard". What reads a mesh says what it does with an axis that
/// it does not know, see refuse_others().
///
/// *Invariants*: sizes multiply to world().size(); names are distinct. An axis of all ranks is the
/// world itself; an axis of one rank is an identity that sends nothing. *Thread safety*: copyable;
/// copies share their groups, used by one thread at a time together with the world's.
/// *Example*:
///
///     fsdp::DeviceMesh mesh(world, {.replicate = 2, .shard = 4});
///     mesh.shard().barrier();  // of the four ranks that hold one replica
///     fsdp::DeviceMesh cube(world, {{"pipeline", 2}, {"replicate", 2}, {"shard", 2}});
///     cube.along("pipeline").size();  // 2
class DeviceMesh {
 public:
  /// The axes that strategies read.
  static constexpr const char* kReplicate = "replicate";
  static constexpr const char* kShard = "shard";
  /// "replicate" outside, "shard" inside.
  struct Sizes {
    int replicate = 1;
    int shard = 1;
  };

  /// Same axes on all ranks, the outermost first. Costs one all-gather and a split of the world per
  /// axis of more than one rank and less than all.
  /// @collective all ranks of `world` @blocks
  /// @throws Error on all ranks: kInvalidArgument naming both numbers unless the sizes are positive
  /// and their product is the world's size, and for a name that is empty or there twice; kMismatch
  /// when a rank asks for another mesh; kUnsupported for a mesh of two real axes over `c10d`
  DeviceMesh(const World& world, std::vector<MeshAxis> axes);
  DeviceMesh(const World& world, Sizes sizes)
      : DeviceMesh(world,
                   std::vector<MeshAxis>{{kReplicate, sizes.replicate}, {kShard, sizes.shard}}) {}
  DeviceMesh(const World& world, int replicate, int shard)
      : DeviceMesh(world, Sizes{.replicate = replicate, .shard = shard}) {}

  const World& world() const { return world_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// Ranks along an axis, and this rank's position on it. A mesh without it: 1 and 0.
  int size(std::string_view axis) const;
  int index(std::string_view axis) const;
  /// The ranks that differ from this one in this axis only, this rank among them. A mesh without
  /// it: this rank alone.
  const World& along(std::string_view axis) const;

  /// The ranks that gather a replica's weights from each other, this rank among them.
  const World& shard() const { return along(kShard); }
  /// The ranks that hold the same shard as this one.
  const World& replicate() const { return along(kReplicate); }

  /// For what reads a mesh and knows these axes only: an axis of one rank passes.
  /// @throws Error kUnsupported naming `reader`, the axis and its size, for any other
  void refuse_others(std::initializer_list<std::string_view> known,
                     const std::string& reader) const;

  /// "replicate 2 x shard 4".
  std::string describe() const;

 private:
  World world_;
  std::vector<MeshAxis> axes_;
  std::vector<World> groups_;  ///< by axis
  World alone_;
};

}  // namespace fsdp
