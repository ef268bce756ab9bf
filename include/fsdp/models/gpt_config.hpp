// SPDX-License-Identifier: Apache-2.0
/// The shape of a GPT-2 model, without LibTorch: the command line checks it before any rank starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/models/special_tokens.hpp"

namespace fsdp::models {

/// The sizes of a GPT-2 model. Radford et al., "Language Models are Unsupervised Multitask
/// Learners" (2019).
struct GPTConfig {
  std::int64_t vocab = 256;    ///< number of tokens; 256 for bytes
  std::int64_t width = 128;    ///< features per position
  std::int64_t layers = 4;     ///< transformer blocks
  std::int64_t heads = 4;      ///< attention heads; must divide the width
  std::int64_t context = 128;  ///< longest sequence: size of the position table
  bool tied = true;            ///< the head uses the token embedding's weight
  double dropout = 0.0;        ///< after embeddings, attention and MLP, while training
  std::int64_t inner = 0;      ///< features inside the MLP; 0 for 4 x width
  double norm_eps = 1e-5;      ///< added to a LayerNorm's variance
  SpecialTokens special = {};

  std::int64_t effective_inner() const { return inner > 0 ? inner : 4 * width; }
};

/// Checks that a model can be built. @throws Error kInvalidArgument naming every size that is wrong
void validate(const GPTConfig& config);

/// Parameters of the model; a tied weight counts once.
std::int64_t parameter_count(const GPTConfig& config);

/// "tiny" (for tests), "default", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl".
/// @throws Error kInvalidArgument for another name, listing these
GPTConfig preset(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace fsdp::models
