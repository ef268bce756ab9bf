// SPDX-License-Identifier: Apache-2.0
#include "models/attention.hpp"

#include <torch/torch.h>

#include <optional>
#include <vector>

namespace fsdp::models::detail {
namespace {

/// [batch, kv heads, time, width] as [batch, heads, time, width].
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t each = heads / x.size(1);
  return each == 1 ? x : x.repeat_interleave(each, 1);
}

/// Which of `seen` positions each of the last `time` ones looks at: those up to its own, and of
/// these the last `window`.
at::Tensor causal_mask(std::int64_t time, std::int64_t seen, std::int64_t window,
                       const at::Tensor& like) {
  const std::int64_t before = seen - time;
  const at::Tensor all = torch::ones({time, seen}, like.options().dtype(torch::kBool)).tril(before);
  return window > 0 ? all.triu(before - window + 1) : all;
}

/// Of one document, or of several rows of one each: [batch, heads, time, width].
at::Tensor attend_one(const at::Tensor& queries, at::Tensor keys, at::Tensor values, double dropout,
                      std::int64_t window) {
  const std::int64_t heads = queries.size(1), time = queries.size(2);
  std::int64_t seen = keys.size(2);
  if (time == 1 && window > 0 && seen > window) {
    keys = keys.narrow(2, seen - window, window);
    values = values.narrow(2, seen - window, window);
    seen = window;
  }
  // One new position looks at all; the kernel's own mask is for equal numbers of both.
  const bool is_narrow = window > 0 && seen > window;
  const bool is_causal = time > 1 && seen == time && !is_narrow;
  const auto mask = time > 1 && !is_causal ? std::optional(causal_mask(time, seen, window, queries))
                                           : std::nullopt;
  return at::scaled_dot_product_attention(queries, repeat_heads(keys, heads),
                                          repeat_heads(values, heads), mask, dropout, is_causal);
}

/// Document by document, row by row.
at::Tensor attend_each(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                       double dropout, std::int64_t window, const Documents& documents) {
  std::vector<at::Tensor> rows;
  for (std::size_t row = 0; row < documents.size(); ++row) {
    const auto number = static_cast<std::int64_t>(row);
    std::vector<at::Tensor> parts;
    std::int64_t begin = 0;
    for (const std::int64_t length : documents[row]) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, number, 1).narrow(2, begin, length);
      };
      parts.push_back(attend_one(part(queries), part(keys), part(values), dropout, window));
      begin += length;
    }
    rows.push_back(torch::cat(parts, 2));
  }
  return torch::cat(rows, 0);
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
  const at::Tensor mixed =
      cache.documents == nullptr
          ? attend_one(queries, keys, values, dropout, cache.window)
          : attend_each(queries, keys, values, dropout, cache.window, *cache.documents);
  return mixed.transpose(1, 2).reshape({queries.size(0), time, heads * queries.size(3)});
}

}  // namespace fsdp::models::detail
