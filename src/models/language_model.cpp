// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/language_model.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "fsdp/base/error.hpp"
#include "models/architecture.hpp"

namespace fsdp::models {
namespace {

/// Room for `length` positions in the third dimension, with the first `used` kept.
at::Tensor grown(const at::Tensor& held, const at::Tensor& like, std::int64_t used,
                 std::int64_t length) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[2] = length;
  at::Tensor room = torch::empty(sizes, like.options());
  if (used > 0) {
    room.narrow(2, 0, used).copy_(held.narrow(2, 0, used));
  }
  return room;
}

}  // namespace

KeyValueCache::Seen KeyValueCache::extend(std::size_t block, const at::Tensor& keys,
                                          const at::Tensor& values) {
  const std::int64_t added = keys.size(2), needed = length_ + added;
  FSDP_CHECK(needed <= capacity_, ErrorCode::kInvalidArgument, "the cache has room for ", capacity_,
             " positions, ", needed, " are needed");
  if (blocks_.size() <= block) {
    blocks_.resize(block + 1);
  }
  Seen& held = blocks_[block];
  const std::int64_t room = held.keys.defined() ? held.keys.size(2) : 0;
  if (room < needed) {
    const std::int64_t length = std::min(capacity_, std::max(needed, 2 * room));
    held.keys = grown(held.keys, keys, length_, length);
    held.values = grown(held.values, values, length_, length);
  }
  held.keys.narrow(2, length_, added).copy_(keys);
  held.values.narrow(2, length_, added).copy_(values);
  return {held.keys.narrow(2, 0, needed), held.values.narrow(2, 0, needed)};
}

void LanguageModel::check_tokens(const at::Tensor& tokens, std::int64_t seen) const {
  FSDP_CHECK(tokens.dim() == 2 && tokens.size(1) > 0, ErrorCode::kInvalidArgument,
             "language model: tokens have ", tokens.dim(),
             " dimensions, expected [batch, time] with a time of at least 1");
  const std::int64_t context = model_sizes().context, time = tokens.size(1);
  FSDP_CHECK(seen + time <= context, ErrorCode::kInvalidArgument, "language model: a sequence of ",
             seen + time, " tokens does not fit the context of ", context);
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens) {
  check_tokens(tokens, 0);
  return head(features(tokens, {}));
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor logits = forward(tokens);
  if (at::isReducedFloatingType(logits.scalar_type())) {
    logits = logits.to(at::kFloat);  // a sum over the vocabulary
  }
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              targets.reshape({-1}));
}

at::Tensor LanguageModel::forward(const PackedBatch& batch) {
  check_tokens(batch.tokens, 0);
  const std::int64_t rows = batch.tokens.size(0), time = batch.tokens.size(1);
  FSDP_CHECK(batch.documents != nullptr && std::ssize(*batch.documents) == rows,
             ErrorCode::kInvalidArgument, "language model: ", rows, " rows have documents of ",
             batch.documents == nullptr ? 0 : batch.documents->size(), " rows");
  for (const std::vector<std::int64_t>& row : *batch.documents) {
    const std::int64_t sum = std::reduce(row.begin(), row.end());
    FSDP_CHECK(sum == time && std::ranges::all_of(row, [](auto length) { return length > 0; }),
               ErrorCode::kInvalidArgument, "language model: the documents of a row have ", sum,
               " tokens together, the row has ", time);
  }
  at::Tensor logits = head(features(batch.tokens, {.documents = batch.documents}));
  if (at::isReducedFloatingType(logits.scalar_type())) {
    logits = logits.to(at::kFloat);
  }
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              batch.targets.reshape({-1}),
                                              torch::nn::functional::CrossEntropyFuncOptions()
                                                  .reduction(torch::kSum)
                                                  .ignore_index(PackedBatch::kNoTarget));
}

at::Tensor LanguageModel::positions(const at::Tensor& tokens, const Surroundings& around) {
  const std::int64_t time = tokens.size(1);
  if (around.documents == nullptr) {
    const std::int64_t begin = around.cache == nullptr ? 0 : around.cache->length();
    return torch::arange(begin, begin + time, tokens.options());
  }
  const at::Tensor all = torch::empty({tokens.size(0), time}, torch::kInt64);
  auto* next = all.data_ptr<std::int64_t>();
  for (const std::vector<std::int64_t>& row : *around.documents) {
    for (const std::int64_t length : row) {
      std::iota(next, next + length, 0);
      next += length;
    }
  }
  return all.to(tokens.device());
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens, KeyValueCache& cache) {
  check_tokens(tokens, cache.length());
  const at::Tensor last = features(tokens, {.cache = &cache}).narrow(1, tokens.size(1) - 1, 1);
  cache.advance(tokens.size(1));
  return head(last).squeeze(1);
}

std::shared_ptr<LanguageModel> make_model(const ModelConfig& config) {
  return detail::architecture_of(config).make(config);
}

}  // namespace fsdp::models
