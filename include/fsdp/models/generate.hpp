// SPDX-License-Identifier: Apache-2.0
/// Draws text from a language model, one token after the other.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "fsdp/models/language_model.hpp"

namespace fsdp::models {

/// How to draw tokens from a model.
struct GenerateOptions {
  std::int64_t tokens = 200;  ///< at most so many
  double temperature = 0.8;   ///< 0 takes the likeliest token
  std::int64_t top_k = 40;    ///< draw among the k likeliest; 0 for all
  /// Draw among the fewest likeliest tokens whose probabilities sum to this at least. Holtzman et
  /// al., "The Curious Case of Neural Text Degeneration" (2020).
  double top_p = 1.0;
  std::uint64_t seed = 1;
  std::vector<std::int64_t> ends = {};  ///< stop after drawing one of these
  /// Keep keys and values of what was seen. Without, each token costs a pass over all.
  bool use_cache = true;
  /// Called with each token drawn; what it returns takes its place. Ranks that draw together must
  /// go on with one and the same, whatever their rounding: return rank 0's there.
  std::function<std::int64_t(std::int64_t)> agree = {};
  /// Where the model computes. Tokens are drawn on the host.
  c10::Device device = c10::kCPU;
};

/// Continues `prompt` (at least one token) and returns the new tokens. The model sees the last
/// `context` tokens; beyond the context each token costs a pass over all of them, for every
/// position changes. Runs without gradients and in evaluation mode, and calls forward once per
/// token, so ranks that call it together stay together.
/// @throws Error kInvalidArgument for an empty prompt, a token outside the vocabulary or an option
/// out of range
std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options = {});

}  // namespace fsdp::models
