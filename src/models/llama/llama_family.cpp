// SPDX-License-Identifier: Apache-2.0
/// Llama's row: its `config.json`, field by field as transformers' LlamaConfig, its names, presets.
#include "models/llama/llama_family.hpp"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "format/json_fields.hpp"
#include "fsdp/base/error.hpp"
#include "models/llama/llama_fields.hpp"

namespace fsdp::models::detail {

using format::detail::Fields;
using nlohmann::ordered_json;

namespace {

/// `rope_scaling` of transformers 4 beside `rope_theta`, or `rope_parameters` of version 5.
RopeConfig read_rope(Fields& fields, std::int64_t context) {
  RopeConfig rope{.theta = fields.number("rope_theta", 10000), .original_context = context};
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const ordered_json* found = fields.find(name);
    if (found == nullptr) {
      continue;
    }
    if (!found->is_object()) {
      fields.problem(std::string(name) + " is " + found->dump() + ", must be an object");
      continue;
    }
    Fields inside = fields.inside(*found, std::string(name) + ".");
    rope.theta = inside.number("rope_theta", rope.theta);
    const std::string type = inside.text("rope_type", inside.text("type", "default"));
    inside.must_be("type", type);
    inside.must_be("partial_rotary_factor", 1.0);
    if (type == "linear" || type == "llama3") {
      rope.scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
      rope.factor = inside.number("factor", 0);
    } else if (type == "default") {
      inside.must_be("factor", 1.0);
    } else {
      fields.problem(std::string(name) + ".rope_type is \"" + type +
                     "\", supported are \"default\", \"linear\" and \"llama3\"");
      inside.ignore({"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
                     "attention_factor", "short_factor", "long_factor"});
    }
    const std::int64_t original =
        inside.integer("original_max_position_embeddings", rope.original_context);
    if (type == "llama3") {
      rope.low_freq_factor = inside.number("low_freq_factor", 0);
      rope.high_freq_factor = inside.number("high_freq_factor", 0);
      rope.original_context = original;
    }
    inside.finish();
  }
  return rope;
}

ordered_json write_rope_scaling(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kDefault) {
    return {};
  }
  ordered_json json = {{"rope_type", to_string(rope.scaling)}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_context;
  }
  return json;
}

}  // namespace

LlamaConfig read_common_fields(Fields& fields) {
  LlamaConfig config{.vocab = fields.required("vocab_size"),
                     .width = fields.required("hidden_size"),
                     .inner = fields.required("intermediate_size"),
                     .layers = fields.required("num_hidden_layers"),
                     .heads = fields.required("num_attention_heads"),
                     .context = fields.required("max_position_embeddings"),
                     .norm_eps = fields.number("rms_norm_eps", 1e-6),
                     .tied = fields.truth("tie_word_embeddings", false),
                     .dropout = fields.number("attention_dropout", 0)};
  config.kv_heads = fields.integer("num_key_value_heads", config.heads);
  config.head_width = fields.integer("head_dim", 0);
  if (config.heads > 0 && config.head_width * config.heads == config.width) {
    config.head_width = 0;
  }
  config.rope = read_rope(fields, config.context);
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.problem("hidden_act is \"" + activation + "\", only \"silu\" is supported");
  }
  fields.must_be("pretraining_tp", 1);
  fields.must_be("rope_interleaved", false);
  fields.must_be("partial_rotary_factor", 1.0);
  return config;
}

ordered_json write_common_fields(const LlamaConfig& config) {
  return {{"vocab_size", config.vocab},
          {"hidden_size", config.width},
          {"intermediate_size", config.inner},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.effective_head_width()},
          {"hidden_act", "silu"},
          {"max_position_embeddings", config.context},
          {"rms_norm_eps", config.norm_eps},
          {"rope_theta", config.rope.theta},
          {"rope_scaling", write_rope_scaling(config.rope)},
          {"attention_dropout", config.dropout}};
}

namespace {

/// Of a configuration that is constant or not.
template <class Model>
auto& part_of(Model& config) {
  using Part = std::conditional_t<std::is_const_v<Model>, const LlamaConfig, LlamaConfig>;
  return std::visit(
      [](auto& known) -> Part& {
        if constexpr (std::is_base_of_v<LlamaConfig, std::remove_cvref_t<decltype(known)>>) {
          return known;
        } else {
          fail(ErrorCode::kInvalidArgument, "a model without the fields of Llama");
        }
      },
      config);
}

}  // namespace

void must_have_layer_types(Fields& fields, const LlamaConfig& config) {
  const ordered_json* found = fields.find("layer_types");
  if (found == nullptr || *found == ordered_json::array()) {
    return;
  }
  const std::int64_t listed = found->is_array() ? std::ssize(*found) : -1;
  bool is_same = listed == config.layers;
  for (std::int64_t block = 0; is_same && block < listed; ++block) {
    is_same = (*found)[static_cast<std::size_t>(block)] ==
              (config.window_of(block) > 0 ? "sliding_attention" : "full_attention");
  }
  if (!is_same) {
    fields.problem("layer_types is " + found->dump() +
                   ", which is not what the other fields say of the " +
                   std::to_string(config.layers) + " blocks");
  }
}

LlamaConfig& llama_part(ModelConfig& config) { return part_of(config); }
const LlamaConfig& llama_part(const ModelConfig& config) { return part_of(config); }

ModelConfig resized_llama(const ModelConfig& model, std::int64_t width, std::int64_t heads) {
  ModelConfig other = model;
  LlamaConfig& config = llama_part(other);
  config.inner = width == config.width ? config.inner : (width * 8 / 3 + 7) / 8 * 8;
  config.width = width;
  config.kv_heads = heads == config.heads ? config.kv_heads : heads;
  config.heads = heads;
  return other;
}

namespace {

ModelConfig read(Fields& fields) {
  LlamaConfig config = read_common_fields(fields);
  config.attention_bias = fields.truth("attention_bias", false);
  config.mlp_bias = fields.truth("mlp_bias", false);
  fields.must_be("is_llama_config", true);
  fields.must_be_empty({"sliding_window"});
  must_have_layer_types(fields, config);
  return config;
}

ordered_json write(const ModelConfig& model) {
  const LlamaConfig& config = std::get<LlamaConfig>(model);
  ordered_json json = write_common_fields(config);
  json["attention_bias"] = config.attention_bias;
  json["mlp_bias"] = config.mlp_bias;
  return json;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {
      {"llama", LlamaConfig{}},
      {"llama-tiny",
       LlamaConfig{
           .width = 32, .inner = 88, .layers = 2, .heads = 4, .kv_heads = 2, .context = 32}},
      {"smollm2-135m", LlamaConfig{.vocab = 49152,
                                   .width = 576,
                                   .inner = 1536,
                                   .layers = 30,
                                   .heads = 9,
                                   .kv_heads = 3,
                                   .context = 8192,
                                   .rope = {.theta = 100000},
                                   .tied = true}},
  };
  return kPresets;
}

}  // namespace

constinit const Architecture kLlamaFamily =
    llama_row("llama", "LlamaForCausalLM", read, write, presets);

}  // namespace fsdp::models::detail
