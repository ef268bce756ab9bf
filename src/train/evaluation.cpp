// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation.hpp"

#include <algorithm>
#include <vector>

#include "fsdp/tokens/tokenizer.hpp"
#include "train/dataset.hpp"
#include "train/evaluate.hpp"
#include "train/inference.hpp"

namespace fsdp::train {
namespace {

using detail::Dataset;
using detail::Part;

/// Bytes of each token's text; special tokens have none.
std::vector<std::int64_t> bytes_of_tokens(const TrainConfig& config) {
  const auto tokenizer =
      config.tokenizer.empty() ? tokens::bytes() : tokens::load(config.tokenizer);
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(models::sizes(config.model).vocab));
  for (std::int64_t id = 0; id < std::ssize(bytes); ++id) {
    const auto token = tokenizer->token(id);
    bytes[static_cast<std::size_t>(id)] = token ? std::ssize(*token) : 0;
  }
  for (const tokens::SpecialToken& special : tokenizer->special_tokens()) {
    if (special.id < std::ssize(bytes)) {
      bytes[static_cast<std::size_t>(special.id)] = 0;
    }
  }
  return bytes;
}

}  // namespace

Evaluation evaluate(const TrainConfig& config, const World& world) {
  const Dataset data(config);
  data.check_vocabulary(models::sizes(config.model).vocab);
  detail::Loaded loaded =
      detail::load_for_inference(config.init, config.adapter, config.prefetch, world);
  Evaluation result;
  const std::int64_t rows = data.rows(Part::kValidation);
  const std::vector<std::int64_t> bytes = bytes_of_tokens(config);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(data.sequence())), targets(tokens),
      documents;
  for (std::int64_t row = 0; row < rows; ++row) {
    result.tokens += data.read(Part::kValidation, row, tokens, targets, documents);
    for (const std::int64_t target : targets) {
      result.bytes += target >= 0 ? bytes[static_cast<std::size_t>(target)] : 0;
    }
  }
  result.nats_per_token =
      detail::evaluate(*loaded.model, world, data, rows, std::max<std::int64_t>(config.batch, 1));
  if (result.bytes > 0) {
    result.nats_per_byte = result.nats_per_token * static_cast<double>(result.tokens) /
                           static_cast<double>(result.bytes);
  }
  return result;
}

}  // namespace fsdp::train
