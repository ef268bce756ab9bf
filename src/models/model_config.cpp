// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/model_config.hpp"

#include <string_view>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::models {
namespace {

struct LlamaPreset {
  const char* name;
  LlamaConfig config;
};

const std::vector<LlamaPreset>& llama_presets() {
  static const std::vector<LlamaPreset> kPresets = {
      {"llama", {}},
      {"llama-tiny",
       {.width = 32, .inner = 88, .layers = 2, .heads = 4, .kv_heads = 2, .context = 32}},
      {"smollm2-135m",
       {.vocab = 49152,
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

constexpr std::string_view kGptPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";

}  // namespace

ModelSizes sizes(const ModelConfig& config) {
  return std::visit(
      [](const auto& known) {
        return ModelSizes{.vocab = known.vocab,
                          .width = known.width,
                          .layers = known.layers,
                          .heads = known.heads,
                          .context = known.context,
                          .tied = known.tied,
                          .dropout = known.dropout};
      },
      config);
}

const char* model_type(const ModelConfig& config) {
  return std::holds_alternative<GPTConfig>(config) ? "gpt2" : "llama";
}

const SpecialTokens& special_tokens(const ModelConfig& config) {
  return std::visit([](const auto& known) -> const SpecialTokens& { return known.special; },
                    config);
}

void validate(const ModelConfig& config) {
  std::visit([](const auto& known) { validate(known); }, config);
}

std::int64_t parameter_count(const ModelConfig& config) {
  return std::visit([](const auto& known) { return parameter_count(known); }, config);
}

ModelConfig model_preset(const std::string& name) {
  for (const LlamaPreset& candidate : llama_presets()) {
    if (candidate.name == name) {
      return candidate.config;
    }
  }
  std::string names;
  for (const std::string& known : model_preset_names()) {
    if (known == name) {
      return preset(name);
    }
    base::append_to_list(names, known);
  }
  fail(ErrorCode::kInvalidArgument, "there is no preset '", name, "'; there are ", names);
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names = preset_names();
  for (const LlamaPreset& candidate : llama_presets()) {
    names.emplace_back(candidate.name);
  }
  return names;
}

std::optional<std::string> parameter_of(const ModelConfig& config, const std::string& stored) {
  if (stored == kHead && sizes(config).tied) {
    return std::nullopt;
  }
  if (std::holds_alternative<LlamaConfig>(config)) {
    return stored.ends_with(".rotary_emb.inv_freq") ? std::nullopt : std::optional(stored);
  }
  if (stored.ends_with(".attn.bias") || stored.ends_with(".attn.masked_bias")) {
    return std::nullopt;
  }
  return stored.starts_with(kGptPrefix) ? stored.substr(kGptPrefix.size()) : stored;
}

std::string published_name(const ModelConfig& config, const std::string& parameter) {
  const bool has_prefix = std::holds_alternative<GPTConfig>(config) && parameter != kHead;
  return (has_prefix ? std::string(kGptPrefix) : "") + parameter;
}

}  // namespace fsdp::models
