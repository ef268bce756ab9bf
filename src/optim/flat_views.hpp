// SPDX-License-Identifier: Apache-2.0
/// The tensors an element-wise optimizer runs over: a unit's whole flat shard where all of its
/// parameters have gradients, else the shards of those that have one.
#pragma once

#include <vector>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::optim {

struct FlatViews {
  std::vector<at::Tensor> shards;
  std::vector<at::Tensor> grads;
  /// Of each pair: which unit, and where in its flat shard.
  std::vector<std::size_t> units;
  std::vector<std::int64_t> offsets;
};

FlatViews views_with_gradients(const Sharded& sharded);

}  // namespace fsdp::optim
