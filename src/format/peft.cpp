// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/peft.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "format/checked_json.hpp"
#include "format/json_fields.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format {

using nlohmann::ordered_json;

namespace {

std::vector<std::string> read_targets(detail::Fields& fields) {
  const ordered_json* found = fields.find("target_modules");
  std::vector<std::string> targets;
  if (found != nullptr && found->is_array()) {
    for (const ordered_json& name : *found) {
      if (name.is_string()) {
        targets.push_back(name.get<std::string>());
      }
    }
  }
  if (targets.empty() || targets.size() != found->size()) {
    fields.problem("target_modules is " + (found == nullptr ? "missing" : found->dump()) +
                   ", only a list of names is supported");
  }
  return targets;
}

}  // namespace

LoRAConfig parse_adapter_config(const std::string& path, const std::string& text) {
  const ordered_json json = detail::parse_object(path, text, 0);
  detail::Problems problems;
  detail::Fields fields(json, "", problems);
  LoRAConfig lora{.rank = fields.required("r"),
                  .alpha = fields.number("lora_alpha", 8),
                  .targets = read_targets(fields),
                  .is_transposed = fields.truth("fan_in_fan_out", false),
                  .dropout = fields.number("lora_dropout", 0),
                  .base = fields.text("base_model_name_or_path", "")};
  if (lora.rank < 1 || !std::isfinite(lora.alpha) || lora.alpha <= 0) {
    fields.problem("r is " + std::to_string(lora.rank) + " and lora_alpha " +
                   std::to_string(lora.alpha) + ", both must be positive");
  }
  fields.must_be("peft_type", "LORA");
  fields.must_be("task_type", "CAUSAL_LM");
  fields.must_be("bias", "none");
  fields.must_be_empty({"use_rslora",
                        "use_dora",
                        "use_qalora",
                        "use_bdlora",
                        "lora_bias",
                        "rank_pattern",
                        "alpha_pattern",
                        "modules_to_save",
                        "layers_to_transform",
                        "layers_pattern",
                        "exclude_modules",
                        "target_parameters",
                        "trainable_token_indices",
                        "layer_replication",
                        "megatron_config",
                        "alora_invocation_tokens",
                        "arrow_config",
                        "ensure_weight_tying",
                        "loftq_config",
                        "corda_config",
                        "eva_config",
                        "kasa_config",
                        "lora_ga_config",
                        "monteclora_config",
                        "velora_config"});
  // Other ways to begin ("pissa", "olora") change the base's weights, which then are not those that
  // the base's file has.
  const ordered_json* drawn = fields.find("init_lora_weights");
  if (drawn != nullptr && !drawn->is_boolean() && *drawn != "gaussian") {
    fields.problem("init_lora_weights is " + drawn->dump() +
                   ", only true, false and \"gaussian\" are supported");
  }
  // How the file was written, and settings of what must be empty above.
  fields.ignore({"inference_mode", "auto_mapping", "peft_version", "revision", "megatron_core",
                 "qalora_group_size", "runtime_config"});
  fields.finish();
  FSDP_CHECK(problems.empty(), ErrorCode::kUnsupported, "'", path,
             "' describes adapters that this library cannot build: ", detail::joined(problems));
  return lora;
}

std::string to_json(const LoRAConfig& lora) {
  const ordered_json json = {{"peft_type", "LORA"},
                             {"task_type", "CAUSAL_LM"},
                             {"base_model_name_or_path", lora.base},
                             {"r", lora.rank},
                             {"lora_alpha", lora.alpha},
                             {"lora_dropout", lora.dropout},
                             {"target_modules", lora.targets},
                             {"fan_in_fan_out", lora.is_transposed},
                             {"bias", "none"},
                             {"use_rslora", false},
                             {"use_dora", false},
                             {"modules_to_save", nullptr},
                             {"inference_mode", true}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::format
