// SPDX-License-Identifier: Apache-2.0
/// Causal attention as all models here compute it.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/models/language_model.hpp"

namespace fsdp::models::detail {

/// The cache that a block of a model reads and adds to.
struct BlockCache {
  KeyValueCache* of_model = nullptr;  ///< none while training
  std::size_t block = 0;
};

/// Softmax attention of `queries` [batch, heads, time, width] over the keys and values
/// [batch, kv heads, time, width] of the same positions and, with a cache, of all before. A key
/// head serves heads / kv heads query heads. Returns [batch, time, heads x width].
at::Tensor attend(const at::Tensor& queries, at::Tensor keys, at::Tensor values, double dropout,
                  const BlockCache& cache);

}  // namespace fsdp::models::detail
