// SPDX-License-Identifier: Apache-2.0
/// Hugging Face's `config.json`, both ways: what all architectures have in common. Their own fields
/// are in their rows.
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "format/checked_json.hpp"
#include "format/json_fields.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/models/model_config.hpp"
#include "models/architecture.hpp"

namespace fsdp::models {

using detail::Architecture;
using detail::architecture_of;
using detail::architectures;
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
  // Defaults of drawing text, which versions before 4.40 wrote beside the model's fields.
  fields.ignore({"max_length",
                 "min_length",
                 "do_sample",
                 "early_stopping",
                 "num_beams",
                 "num_beam_groups",
                 "diversity_penalty",
                 "temperature",
                 "top_k",
                 "top_p",
                 "typical_p",
                 "repetition_penalty",
                 "length_penalty",
                 "no_repeat_ngram_size",
                 "encoder_no_repeat_ngram_size",
                 "bad_words_ids",
                 "num_return_sequences",
                 "output_scores",
                 "return_dict_in_generate",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "remove_invalid_values",
                 "exponential_decay_length_penalty",
                 "suppress_tokens",
                 "begin_suppress_tokens",
                 "prefix",
                 "sep_token_id",
                 "tokenizer_class",
                 "torchscript",
                 "tf_legacy_loss",
                 "use_bfloat16"});
}

/// Fields of any architecture that would change the model's function.
void refuse_variants(Fields& fields, const char* architecture) {
  const ordered_json* named = fields.find("architectures");
  const ordered_json expected = ordered_json::array({architecture});
  if (named != nullptr && !named->empty() && *named != expected) {
    fields.problem("architectures is " + named->dump() + ", only " + expected.dump() +
                   " is supported");
  }
  fields.must_be_empty(
      {"quantization_config", "per_layer_config", "adapters", "pruned_heads", "auto_map"});
  fields.must_be("is_encoder_decoder", false);
  fields.must_be("add_cross_attention", false);
  fields.must_be("is_decoder", true);
  fields.must_be_empty(
      {"cross_attention_hidden_size", "decoder_start_token_id", "tie_encoder_decoder"});
}

SpecialTokens read_special(Fields& fields) {
  return {.begin = fields.token("bos_token_id"),
          .ends = fields.tokens("eos_token_id"),
          .padding = fields.token("pad_token_id")};
}

const Architecture& architecture_named(const std::string& path, const std::string& type) {
  std::string known;
  for (const Architecture* each : architectures()) {
    if (each->model_type == type) {
      return *each;
    }
    base::append_to_list(known, each->model_type);
  }
  fail(ErrorCode::kUnsupported, "'", path, "': model_type is '", type, "'; supported are ", known,
       ". Modules of other families are sharded by the library (fully_shard), not by this program");
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

}  // namespace

ModelConfig read_config(const std::string& path, const std::string& text) {
  const ordered_json json = format::detail::parse_object(path, text, 0);
  const std::string type = json.contains("model_type") && json["model_type"].is_string()
                               ? json["model_type"].get<std::string>()
                               : "";
  const Architecture& architecture = architecture_named(path, type);
  Problems problems;
  Fields fields(json, "", problems);
  ignore_bookkeeping(fields);
  refuse_variants(fields, architecture.transformers_class);
  const SpecialTokens special = read_special(fields);
  ModelConfig config = architecture.read(fields);
  fields.finish();
  FSDP_CHECK(
      problems.empty(), ErrorCode::kUnsupported, "'", path,
      "' asks for a model that this library cannot build: ", format::detail::joined(problems));
  std::visit([&](auto& known) { known.special = special; }, config);
  validate(config);
  return config;
}

std::string config_json(const ModelConfig& config, const std::string& dtype) {
  const Architecture& architecture = architecture_of(config);
  ordered_json json = {{"architectures", {architecture.transformers_class}},
                       {"model_type", architecture.model_type}};
  json.update(architecture.write(config));
  write_special(special_tokens(config), json);
  json["tie_word_embeddings"] = sizes(config).tied;
  json["torch_dtype"] = dtype;
  return json.dump(2) + "\n";
}

}  // namespace fsdp::models
