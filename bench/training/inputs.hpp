// SPDX-License-Identifier: Apache-2.0
/// What every system of a comparison starts from: one file of weights, one file of tokens.
#pragma once

#include <string>

#include "fsdp/models/gpt.hpp"

namespace bench {

/// Writes a GPT's first weights (seed 1) as safetensors, and `rows` sequences of random tokens, a
/// byte each, of context + 1 tokens.
void write_inputs(const fsdp::models::GPTConfig& config, std::int64_t rows,
                  const std::string& weights, const std::string& tokens);

/// A GPT with the weights of such a file. Its own first values are drawn without cost.
fsdp::models::GPT read_model(const fsdp::models::GPTConfig& config, const std::string& weights);

struct Batch {
  at::Tensor x, y;  ///< int64 [rows, context]
};

/// Rows [first, first + rows) of such a file.
Batch read_batch(const std::string& tokens, std::int64_t first, std::int64_t rows,
                 std::int64_t context);

}  // namespace bench
