// SPDX-License-Identifier: Apache-2.0
/// Causal attention as all models here compute it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "fsdp/models/language_model.hpp"

namespace fsdp::models::detail {

/// What a block's attention looks at beside the tokens of its call.
struct BlockCache {
  KeyValueCache* of_model = nullptr;  ///< read and added to; none while training
  std::size_t block = 0;
  std::int64_t window = 0;                       ///< positions seen, its own among them; 0 for all
  std::shared_ptr<const Documents> documents{};  ///< several in a row; none: one
};

/// Softmax attention of `queries` [batch, heads, time, width] over the keys and values
/// [batch, kv heads, time, width] of the same positions and, with a cache, of all before. A key
/// head serves heads / kv heads query heads. No document sees another one, and their cost adds up
/// document by document. Returns [batch, time, heads x width].
at::Tensor attend(const at::Tensor& queries, at::Tensor keys, at::Tensor values, double dropout,
                  const BlockCache& cache);

}  // namespace fsdp::models::detail
