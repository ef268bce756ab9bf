// SPDX-License-Identifier: Apache-2.0
/// GPT-2's row: its `config.json`, field by field as transformers' GPT2Config, its names, presets.
#include "models/gpt/gpt_family.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "format/json_fields.hpp"

namespace fsdp::models::detail {

using format::detail::Fields;
using nlohmann::ordered_json;

namespace {

ModelConfig read(Fields& fields) {
  GPTConfig config{.vocab = fields.required("vocab_size"),
                   .width = fields.required("n_embd"),
                   .layers = fields.required("n_layer"),
                   .heads = fields.required("n_head"),
                   .context = fields.required("n_positions"),
                   .tied = fields.truth("tie_word_embeddings", true),
                   .dropout = fields.number("resid_pdrop", 0.1),
                   .inner = fields.integer("n_inner", 0),
                   .norm_eps = fields.number("layer_norm_epsilon", 1e-5)};
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
  fields.must_be_empty({"sliding_window", "layer_types"});
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  // It changes the order of roundings only, and only in 16 bits.
  fields.ignore({"reorder_and_upcast_attn"});
  fields.ignore({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                 "summary_first_dropout"});
  return config;
}

ordered_json write(const ModelConfig& model) {
  const GPTConfig& config = std::get<GPTConfig>(model);
  ordered_json json = {{"activation_function", "gelu_new"},
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

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = [] {
    std::vector<Preset> all;
    for (const std::string& name : preset_names()) {
      all.push_back({name, preset(name)});
    }
    return all;
  }();
  return kPresets;
}

ModelConfig resized(const ModelConfig& model, std::int64_t width, std::int64_t heads) {
  GPTConfig config = std::get<GPTConfig>(model);
  config.width = width;
  config.heads = heads;
  return config;
}

constexpr const char* kComputed[] = {".attn.bias", ".attn.masked_bias"};
constexpr const char* kTables[] = {"*wte.weight", "*wpe.weight"};
constexpr const char* kAdapterTargets[] = {"c_attn"};

}  // namespace

constinit const Architecture kGptFamily = {.model_type = "gpt2",
                                           .transformers_class = "GPT2LMHeadModel",
                                           .read = read,
                                           .write = write,
                                           .presets = presets,
                                           .resized = resized,
                                           .make = make_gpt,
                                           .published_prefix = "transformer.",
                                           .computed = kComputed,
                                           .tables = kTables,
                                           .adapter_targets = kAdapterTargets,
                                           .is_transposed = true};

}  // namespace fsdp::models::detail
