// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/data/corpus.hpp"
#include "fsdp/data/sampler.hpp"

namespace fsdp::train::detail {

/// Tokens and, at the same place, the token that follows: int64 [windows, sequence] each.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

Batch load(const data::Corpus& corpus, const data::Windows& windows,
           const std::vector<std::int64_t>& indices);

}  // namespace fsdp::train::detail
