// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/flat_parts.hpp"

#include <algorithm>

#include "engine/touch/flat_storage.hpp"

namespace fsdp::engine {

FlatParts::FlatParts(const Unit& unit, const at::Tensor& flat, StorageRole role)
    : role_(role), flat_(role == StorageRole::kShard ? tagged_part(flat, 0, flat.numel()) : flat) {
  for (const Parameter& parameter : unit.parameters) {
    parts_.push_back(tagged_part(flat, parameter.piece.shard_offset, parameter.piece.numel));
  }
}

void FlatParts::connect(const std::weak_ptr<TouchTarget>& target, int unit) {
  registration_.emplace(flat_.storage().unsafeGetStorageImpl(), target, unit, /*parameter=*/0,
                        role_);
}

bool FlatParts::has_grad() const {
  return std::ranges::any_of(parts_, [](const at::Tensor& part) { return part.grad().defined(); });
}

}  // namespace fsdp::engine
