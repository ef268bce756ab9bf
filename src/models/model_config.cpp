// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/model_config.hpp"

#include <algorithm>
#include <string_view>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "models/architecture.hpp"

namespace fsdp::models {

using detail::Architecture;
using detail::architecture_of;
using detail::architectures;
using detail::Preset;

namespace {

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

const char* model_type(const ModelConfig& config) { return architecture_of(config).model_type; }

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
  std::string names;
  for (const Architecture* architecture : architectures()) {
    for (const Preset& preset : architecture->presets()) {
      if (preset.name == name) {
        return preset.config;
      }
      base::append_to_list(names, preset.name);
    }
  }
  fail(ErrorCode::kInvalidArgument, "there is no preset '", name, "'; there are ", names);
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Architecture* architecture : architectures()) {
    for (const Preset& preset : architecture->presets()) {
      names.push_back(preset.name);
    }
  }
  return names;
}

ModelConfig resized(const ModelConfig& config, std::optional<std::int64_t> width,
                    std::optional<std::int64_t> heads) {
  const ModelSizes now = sizes(config);
  return architecture_of(config).resized(config, width.value_or(now.width),
                                         heads.value_or(now.heads));
}

std::vector<std::string> default_adapter_targets(const ModelConfig& config) {
  const detail::Names targets = architecture_of(config).adapter_targets;
  return {targets.begin(), targets.end()};
}

std::vector<std::string> token_tables(const ModelConfig& config) {
  const detail::Names tables = architecture_of(config).tables;
  std::vector<std::string> patterns(tables.begin(), tables.end());
  if (!sizes(config).tied) {
    patterns.push_back("*" + std::string(kHead));
  }
  return patterns;
}

std::optional<std::string> parameter_of(const ModelConfig& config, const std::string& stored) {
  const Architecture& architecture = architecture_of(config);
  const bool is_computed =
      std::any_of(architecture.computed.begin(), architecture.computed.end(),
                  [&](const char* ending) { return stored.ends_with(ending); });
  if (is_computed || (stored == kHead && sizes(config).tied)) {
    return std::nullopt;
  }
  const std::string_view prefix = architecture.published_prefix;
  return stored.starts_with(prefix) ? stored.substr(prefix.size()) : stored;
}

std::string published_name(const ModelConfig& config, const std::string& parameter) {
  return (parameter == kHead ? "" : architecture_of(config).published_prefix) + parameter;
}

}  // namespace fsdp::models
