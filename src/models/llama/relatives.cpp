// SPDX-License-Identifier: Apache-2.0
/// The rows of Llama's relatives: what of their `config.json` is not Llama's, field by field as
/// transformers' MistralConfig, Qwen2Config and Qwen3Config.
#include "models/llama/relatives.hpp"

#include <nlohmann/json.hpp>

#include "format/json_fields.hpp"
#include "models/llama/llama_family.hpp"
#include "models/llama/llama_fields.hpp"

namespace fsdp::models::detail {

using format::detail::Fields;
using nlohmann::ordered_json;

namespace {

/// transformers' defaults where a file says nothing. Their configurations have a number of key
/// heads that no published model of these families leaves out.
constexpr std::int64_t kMistralWindow = 4096, kQwenWindow = 4096, kQwenFirstWindowed = 28;
constexpr std::int64_t kQwen3HeadWidth = 128;

LlamaConfig read_shared(Fields& fields) {
  LlamaConfig config = read_common_fields(fields);
  if (fields.find("num_key_value_heads") == nullptr) {
    fields.problem("num_key_value_heads is missing");
  }
  fields.must_be("mlp_bias", false);
  return config;
}

/// A window of a number of positions, or none.
void read_window(Fields& fields, std::int64_t absent, LlamaConfig& config) {
  config.window = fields.integer_or_none("sliding_window", absent);
}

ordered_json written_window(const LlamaConfig& config) {
  return config.window > 0 ? ordered_json(config.window) : ordered_json();
}

ModelConfig read_mistral(Fields& fields) {
  LlamaConfig config = read_shared(fields);
  read_window(fields, kMistralWindow, config);
  fields.must_be("attention_bias", false);
  must_have_layer_types(fields, config);
  return MistralConfig{config};
}

ordered_json write_mistral(const ModelConfig& model) {
  const LlamaConfig& config = llama_part(model);
  ordered_json json = write_common_fields(config);
  json["sliding_window"] = written_window(config);
  return json;
}

/// Qwen's files name a window that is off unless another field says so.
void read_qwen_window(Fields& fields, LlamaConfig& config) {
  read_window(fields, kQwenWindow, config);
  config.first_windowed = fields.integer("max_window_layers", kQwenFirstWindowed);
  if (!fields.truth("use_sliding_window", false)) {
    config.window = config.first_windowed = 0;
  }
  fields.must_be("use_mrope", false);
  must_have_layer_types(fields, config);
}

void write_qwen_window(const LlamaConfig& config, ordered_json& json) {
  json["use_sliding_window"] = config.window > 0;
  json["sliding_window"] = written_window(config);
  json["max_window_layers"] = config.window > 0 ? config.first_windowed : config.layers;
}

ModelConfig read_qwen2(Fields& fields) {
  LlamaConfig config = read_shared(fields);
  config.input_bias = true;
  fields.must_be("attention_bias", true);  // transformers has no such field for Qwen2
  read_qwen_window(fields, config);
  return Qwen2Config{config};
}

ordered_json write_qwen2(const ModelConfig& model) {
  const LlamaConfig& config = llama_part(model);
  ordered_json json = write_common_fields(config);
  write_qwen_window(config, json);
  return json;
}

ModelConfig read_qwen3(Fields& fields) {
  const bool has_head_width = fields.find("head_dim") != nullptr;
  LlamaConfig config = read_shared(fields);
  config.head_norms = true;
  config.attention_bias = fields.truth("attention_bias", false);
  if (!has_head_width) {
    config.head_width = kQwen3HeadWidth;
  }
  read_qwen_window(fields, config);
  return Qwen3Config{config};
}

ordered_json write_qwen3(const ModelConfig& model) {
  ordered_json json = write_qwen2(model);
  json["attention_bias"] = llama_part(model).attention_bias;
  return json;
}

LlamaConfig tiny() {
  return {.width = 32, .inner = 88, .layers = 2, .heads = 4, .kv_heads = 2, .context = 32};
}

const std::vector<Preset>& mistral_presets() {
  static const std::vector<Preset> kPresets = [] {
    MistralConfig small{tiny()};
    small.window = 16;
    return std::vector<Preset>{{"mistral-tiny", small}};
  }();
  return kPresets;
}

const std::vector<Preset>& qwen2_presets() {
  static const std::vector<Preset> kPresets = [] {
    Qwen2Config small{tiny()};
    Qwen2Config half_billion{{.vocab = 151936,
                              .width = 896,
                              .inner = 4864,
                              .layers = 24,
                              .heads = 14,
                              .kv_heads = 2,
                              .context = 32768,
                              .norm_eps = 1e-6,
                              .rope = {.theta = 1e6},
                              .tied = true}};
    small.input_bias = half_billion.input_bias = true;
    return std::vector<Preset>{{"qwen2-tiny", small}, {"qwen2.5-0.5b", half_billion}};
  }();
  return kPresets;
}

const std::vector<Preset>& qwen3_presets() {
  static const std::vector<Preset> kPresets = [] {
    Qwen3Config small{tiny()};
    Qwen3Config large{{.vocab = 151936,
                       .width = 1024,
                       .inner = 3072,
                       .layers = 28,
                       .heads = 16,
                       .kv_heads = 8,
                       .head_width = 128,
                       .context = 40960,
                       .norm_eps = 1e-6,
                       .rope = {.theta = 1e6},
                       .tied = true}};
    small.head_norms = large.head_norms = true;
    return std::vector<Preset>{{"qwen3-tiny", small}, {"qwen3-0.6b", large}};
  }();
  return kPresets;
}

}  // namespace

constinit const Architecture kMistralFamily =
    llama_row("mistral", "MistralForCausalLM", read_mistral, write_mistral, mistral_presets);
constinit const Architecture kQwen2Family =
    llama_row("qwen2", "Qwen2ForCausalLM", read_qwen2, write_qwen2, qwen2_presets);
constinit const Architecture kQwen3Family =
    llama_row("qwen3", "Qwen3ForCausalLM", read_qwen3, write_qwen3, qwen3_presets);

}  // namespace fsdp::models::detail
