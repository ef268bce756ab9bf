// SPDX-License-Identifier: Apache-2.0
/// Hugging Face's `config.json`, both ways. Field names and defaults are those of transformers'
/// GPT2Config and LlamaConfig.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "format/checked_json.hpp"
#include "format/json_fields.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/models/model_config.hpp"

namespace fsdp::models {

using format::detail::Fields;
using format::detail::Problems;
using nlohmann::ordered_json;

namespace {

/// Fields of any architecture that say nothing about the model's function: who wrote the file, the
/// type of the weights (each tensor has its own), defaults of other programs, heads for tasks that
/// are no language modelling.
void ignore_bookkeeping(Fields& fields) {
  fields.ignore({"_name_or_path",
                 "name_or_path",
                 "_commit_hash",
                 "model_type",
                 "torch_dtype",
                 "dtype",
                 "transformers_version",
                 "transformers.js_config",
                 "use_cache",
                 "return_dict",
                 "output_attentions",
                 "output_hidden_states",
                 "gradient_checkpointing",
                 "task_specific_params",
                 "id2label",
                 "label2id",
                 "num_labels",
                 "problem_type",
                 "finetuning_task",
                 "chunk_size_feed_forward",
                 "initializer_range",
                 "_attn_implementation",
                 "_attn_implementation_autoset",
                 "unsloth_version",
                 "unsloth_fixed"});
}

/// Fields of any architecture that would change the model's function.
void refuse_variants(Fields& fields, const char* architecture) {
  const ordered_json* named = fields.find("architectures");
  const ordered_json expected = ordered_json::array({architecture});
  if (named != nullptr && !named->empty() && *named != expected) {
    fields.problem("architectures is " + named->dump() + ", only " + expected.dump() +
                   " is supported");
  }
  fields.must_be_empty({"quantization_config", "per_layer_config", "sliding_window", "layer_types",
                        "adapters", "pruned_heads", "auto_map"});
  fields.must_be("is_encoder_decoder", false);
  fields.must_be("add_cross_attention", false);
  fields.must_be("is_decoder", true);
}

SpecialTokens read_special(Fields& fields) {
  return {.begin = fields.token("bos_token_id"),
          .ends = fields.tokens("eos_token_id"),
          .padding = fields.token("pad_token_id")};
}

GPTConfig read_gpt(const ordered_json& json, Problems& problems) {
  Fields fields(json, "", problems);
  ignore_bookkeeping(fields);
  refuse_variants(fields, "GPT2LMHeadModel");
  GPTConfig config{.vocab = fields.required("vocab_size"),
                   .width = fields.required("n_embd"),
                   .layers = fields.required("n_layer"),
                   .heads = fields.required("n_head"),
                   .context = fields.required("n_positions"),
                   .tied = fields.truth("tie_word_embeddings", true),
                   .dropout = fields.number("resid_pdrop", 0.1),
                   .inner = fields.integer("n_inner", 0),
                   .norm_eps = fields.number("layer_norm_epsilon", 1e-5),
                   .special = read_special(fields)};
  if (config.inner == 4 * config.width) {
    config.inner = 0;
  }
  for (const char* name : {"embd_pdrop", "attn_pdrop"}) {
    const double dropout = fields.number(name, 0.1);
    if (dropout != config.dropout) {
      std::ostringstream text;
      text << name << " is " << dropout << " and resid_pdrop is " << config.dropout
           << ", only one rate for all is supported";
      fields.problem(text.str());
    }
  }
  const std::string activation = fields.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.problem("activation_function is \"" + activation +
                   "\", only \"gelu_new\" (or \"gelu_pytorch_tanh\", the same) is supported");
  }
  fields.must_be("n_ctx", config.context);
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  // It changes the order of roundings only, and only in 16 bits.
  fields.ignore({"reorder_and_upcast_attn"});
  fields.ignore({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                 "summary_first_dropout"});
  fields.finish();
  return config;
}

/// `rope_scaling` of transformers 4 beside `rope_theta`, or `rope_parameters` of version 5.
RopeConfig read_rope(Fields& fields, std::int64_t context, Problems& problems) {
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
    Fields inside(*found, std::string(name) + ".", problems);
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

LlamaConfig read_llama(const ordered_json& json, Problems& problems) {
  Fields fields(json, "", problems);
  ignore_bookkeeping(fields);
  refuse_variants(fields, "LlamaForCausalLM");
  LlamaConfig config{.vocab = fields.required("vocab_size"),
                     .width = fields.required("hidden_size"),
                     .inner = fields.required("intermediate_size"),
                     .layers = fields.required("num_hidden_layers"),
                     .heads = fields.required("num_attention_heads"),
                     .context = fields.required("max_position_embeddings"),
                     .norm_eps = fields.number("rms_norm_eps", 1e-6),
                     .attention_bias = fields.truth("attention_bias", false),
                     .mlp_bias = fields.truth("mlp_bias", false),
                     .tied = fields.truth("tie_word_embeddings", false),
                     .dropout = fields.number("attention_dropout", 0),
                     .special = read_special(fields)};
  config.kv_heads = fields.integer("num_key_value_heads", config.heads);
  config.head_width = fields.integer("head_dim", 0);
  if (config.heads > 0 && config.head_width * config.heads == config.width) {
    config.head_width = 0;
  }
  config.rope = read_rope(fields, config.context, problems);
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.problem("hidden_act is \"" + activation + "\", only \"silu\" is supported");
  }
  fields.must_be("pretraining_tp", 1);
  fields.must_be("is_llama_config", true);
  fields.must_be("rope_interleaved", false);
  fields.must_be("partial_rotary_factor", 1.0);
  fields.finish();
  return config;
}

void write_special(const SpecialTokens& special, ordered_json& json) {
  const auto token = [](const std::optional<std::int64_t>& id) {
    return id ? ordered_json(*id) : ordered_json();
  };
  json["bos_token_id"] = token(special.begin);
  json["eos_token_id"] = special.ends.empty()       ? ordered_json()
                         : special.ends.size() == 1 ? ordered_json(special.ends.front())
                                                    : ordered_json(special.ends);
  json["pad_token_id"] = token(special.padding);
}

ordered_json write(const GPTConfig& config) {
  ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                       {"model_type", "gpt2"},
                       {"activation_function", "gelu_new"},
                       {"attn_pdrop", config.dropout},
                       {"embd_pdrop", config.dropout},
                       {"resid_pdrop", config.dropout},
                       {"layer_norm_epsilon", config.norm_eps},
                       {"n_embd", config.width},
                       {"n_head", config.heads},
                       {"n_layer", config.layers},
                       {"n_positions", config.context},
                       {"vocab_size", config.vocab}};
  if (config.inner > 0) {
    json["n_inner"] = config.inner;
  }
  return json;
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

ordered_json write(const LlamaConfig& config) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", config.vocab},
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
          {"attention_bias", config.attention_bias},
          {"mlp_bias", config.mlp_bias},
          {"attention_dropout", config.dropout}};
}

}  // namespace

ModelConfig read_config(const std::string& path, const std::string& text) {
  const ordered_json json = format::detail::parse_object(path, text, 0);
  const std::string type = json.contains("model_type") && json["model_type"].is_string()
                               ? json["model_type"].get<std::string>()
                               : "";
  FSDP_CHECK(type == "gpt2" || type == "llama", ErrorCode::kUnsupported, "'", path,
             "': model_type is '", type, "'; supported are gpt2 and llama");
  Problems problems;
  const ModelConfig config = type == "gpt2" ? ModelConfig(read_gpt(json, problems))
                                            : ModelConfig(read_llama(json, problems));
  FSDP_CHECK(
      problems.empty(), ErrorCode::kUnsupported, "'", path,
      "' asks for a model that this library cannot build: ", format::detail::joined(problems));
  validate(config);
  return config;
}

std::string config_json(const ModelConfig& config, const std::string& dtype) {
  ordered_json json = std::visit([](const auto& known) { return write(known); }, config);
  write_special(special_tokens(config), json);
  json["tie_word_embeddings"] = sizes(config).tied;
  json["torch_dtype"] = dtype;
  return json.dump(2) + "\n";
}

}  // namespace fsdp::models
