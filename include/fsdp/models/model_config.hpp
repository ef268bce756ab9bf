// SPDX-License-Identifier: Apache-2.0
/// The shape of any model there is here, and Hugging Face's `config.json` for it. Without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/models/gpt_config.hpp"
#include "fsdp/models/llama_config.hpp"

namespace fsdp::models {

/// The shape of a model of one of the families; src/models/architecture.hpp has a row for each.
using ModelConfig = std::variant<GPTConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config>;

/// What all architectures have.
struct ModelSizes {
  std::int64_t vocab = 0;    ///< number of tokens
  std::int64_t width = 0;    ///< features per position
  std::int64_t layers = 0;   ///< transformer blocks
  std::int64_t heads = 0;    ///< query heads
  std::int64_t context = 0;  ///< longest sequence
  bool tied = false;         ///< the head uses the token embedding's weight
  double dropout = 0;
};
ModelSizes sizes(const ModelConfig& config);

/// "gpt2", "llama", "mistral", "qwen2" or "qwen3": Hugging Face's model_type.
const char* model_type(const ModelConfig& config);
const SpecialTokens& special_tokens(const ModelConfig& config);

/// @throws Error kInvalidArgument naming every size that is wrong
void validate(const ModelConfig& config);
std::int64_t parameter_count(const ModelConfig& config);

/// GPT's presets; "llama" (small, for bytes), "llama-tiny" (for tests), "smollm2-135m"; for tests,
/// "mistral-tiny", "qwen2-tiny", "qwen3-tiny"; and "qwen2.5-0.5b", "qwen3-0.6b".
/// @throws Error kInvalidArgument for another name, listing these
ModelConfig model_preset(const std::string& name);
std::vector<std::string> model_preset_names();

/// The same with another width or number of heads, and with what follows from these: of Llama, the
/// inner width keeps its proportion and each query head gets a key head.
ModelConfig resized(const ModelConfig& config, std::optional<std::int64_t> width,
                    std::optional<std::int64_t> heads);

/// The projections that adapters are put beside unless others are named.
std::vector<std::string> default_adapter_targets(const ModelConfig& config);

/// Patterns of the matrices whose rows are tokens or positions, the head's too: no maps, so rules
/// for whole matrices leave them alone.
std::vector<std::string> token_tables(const ModelConfig& config);

/// Reads the text of a `config.json`; errors call it `path`. Every field decides something, must
/// have the value that changes nothing, or is on a list of fields that say nothing about the model.
/// @throws Error kCorrupt for a text that is no JSON; kUnsupported naming every field that this
/// library does not know and every value that it cannot follow; kInvalidArgument as validate()
ModelConfig read_config(const std::string& path, const std::string& text);

/// The `config.json` that transformers (4 and 5) reads for such a model; `dtype` is its name for
/// the type of the weights, such as "float32".
std::string config_json(const ModelConfig& config, const std::string& dtype);

/// The parameter of our model that a tensor of a published file is: names may have the prefix of
/// the whole model ("transformer.wte.weight") or not. Empty for tensors that hold nothing to load:
/// causal masks, rotary tables, and the head of a tied model.
std::optional<std::string> parameter_of(const ModelConfig& config, const std::string& stored);

/// The name that transformers' causal language model has for one of our parameters.
std::string published_name(const ModelConfig& config, const std::string& parameter);

}  // namespace fsdp::models
