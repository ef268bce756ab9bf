// SPDX-License-Identifier: Apache-2.0
/// From a module in one piece to units that are laid out over the ranks: what runs once, and is
/// gone. See also initial_weights.hpp.
#pragma once

#include <vector>

#include "engine/partition/partition.hpp"
#include "engine/unit/module_layout.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/engine/offload.hpp"
#include "fsdp/engine/options.hpp"

namespace fsdp::engine {

class Setup {
 public:
  /// All that is passed outlives it. `copier`: between the shards' memory and the weights', null
  /// where there is one memory.
  Setup(Partition partition, const World& world, const Options& options, Copier* copier);

  /// Lays the module out and compares that over the ranks.
  /// @collective all ranks @throws Error, see fully_shard()
  ModuleLayout layout() &&;

 private:
  void check_options() const;
  Groups groups_of_mesh() const;
  void place(Unit& unit, const Groups& mesh) const;
  bool is_aliased() const;
  schedule::Config schedule_config() const;

  Partition partition_;
  const Options& options_;
  Copier* copier_;
  const comm::Link link_;
};

}  // namespace fsdp::engine
