// SPDX-License-Identifier: Apache-2.0
/// Shards as users and optimizers see them.
#pragma once

#include <vector>

#include "engine/unit/flat_parts.hpp"
#include "engine/unit/module_layout.hpp"
#include "fsdp/engine/shards.hpp"

namespace fsdp::engine {

NamedShard named_shard(const ModuleLayout& layout, ModuleLayout::Index index,
                       const std::vector<FlatParts>& shards);

/// One per parameter, in the module's order.
std::vector<NamedShard> named_shards(const ModuleLayout& layout,
                                     const std::vector<FlatParts>& shards);

/// One per unit.
std::vector<FlatShard> flat_shards(const ModuleLayout& layout, const std::vector<FlatParts>& shards,
                                   const std::vector<FlatParts>& grads);

}  // namespace fsdp::engine
