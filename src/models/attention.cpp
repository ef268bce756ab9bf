// SPDX-License-Identifier: Apache-2.0
#include "models/attention.hpp"

#include <torch/torch.h>

namespace fsdp::models::detail {
namespace {

/// [batch, kv heads, time, width] as [batch, heads, time, width].
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t each = heads / x.size(1);
  return each == 1 ? x : x.repeat_interleave(each, 1);
}

/// Which of `seen` positions each of the last `time` ones looks at.
at::Tensor causal_mask(std::int64_t time, std::int64_t seen, const at::Tensor& like) {
  return torch::ones({time, seen}, like.options().dtype(torch::kBool)).tril(seen - time);
}

}  // namespace

at::Tensor attend(const at::Tensor& queries, at::Tensor keys, at::Tensor values, double dropout,
                  const BlockCache& cache) {
  const std::int64_t heads = queries.size(1), time = queries.size(2);
  if (cache.of_model != nullptr) {
    const KeyValueCache::Seen all = cache.of_model->extend(cache.block, keys, values);
    keys = all.keys;
    values = all.values;
  }
  const std::int64_t seen = keys.size(2);
  // One new position looks at all; the kernel's own mask is for equal numbers of both.
  const bool is_causal = time > 1 && seen == time;
  const at::Tensor mask =
      time > 1 && seen != time ? causal_mask(time, seen, queries) : at::Tensor();
  const auto optional_mask = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor mixed = at::scaled_dot_product_attention(queries, repeat_heads(keys, heads),
                                                            repeat_heads(values, heads),
                                                            optional_mask, dropout, is_causal);
  return mixed.transpose(1, 2).reshape({queries.size(0), time, heads * queries.size(3)});
}

}  // namespace fsdp::models::detail
