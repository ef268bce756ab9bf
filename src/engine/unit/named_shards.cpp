// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/named_shards.hpp"

namespace fsdp::engine {

NamedShard named_shard(const ModuleLayout& layout, ModuleLayout::Index index,
                       const std::vector<FlatParts>& shards) {
  const Parameter& parameter = layout.at(index.unit).at(index.parameter);
  return {.name = parameter.name,
          .parameter = parameter.tensor,
          .shard = shards[static_cast<std::size_t>(index.unit)].part(index.parameter),
          .begin = parameter.piece.parameter_offset,
          .sizes = parameter.sizes,
          .aliases = parameter.aliases,
          .unit = index.unit,
          .answered_begin = parameter.answered.shard_offset,
          .answered_numel = parameter.answered.numel};
}

std::vector<NamedShard> named_shards(const ModuleLayout& layout,
                                     const std::vector<FlatParts>& shards) {
  std::vector<NamedShard> named;
  for (const ModuleLayout::Index index : layout.ordered_parameters()) {
    named.push_back(named_shard(layout, index, shards));
  }
  return named;
}

std::vector<FlatShard> flat_shards(const ModuleLayout& layout, const std::vector<FlatParts>& shards,
                                   const std::vector<FlatParts>& grads) {
  std::vector<FlatShard> flats;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Unit& unit = layout.units[i];
    const std::int64_t slice = unit.layout->shard_numel();
    flats.push_back(
        {.shard = shards[i].flat(),
         .grad = shards[i].has_grad() ? grads[i].flat() : at::Tensor(),
         .trains = unit.is_trainable(),
         .answered_begin = (unit.placement.answers_for - unit.placement.own.first) * slice,
         .answered_numel = slice});
  }
  return flats;
}

}  // namespace fsdp::engine
