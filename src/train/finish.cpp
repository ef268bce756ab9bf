// SPDX-License-Identifier: Apache-2.0
/// What a run leaves behind: the saved model and a sample.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "archive/commit.hpp"
#include "archive/file.hpp"
#include "base/unfinished.hpp"
#include "checkpoint/save_weights.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/models/generate.hpp"
#include "fsdp/models/lora.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "train/model.hpp"
#include "train/summary.hpp"

namespace fsdp::train::detail {
namespace {

constexpr std::int64_t kPromptTokens = 8;
/// Another run holds the directory for as long as a few small files take.
constexpr double kPatience_s = 60;

std::string numbers(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) {
    text += (text.empty() ? "" : " ") + std::to_string(token);
  }
  return text;
}

/// As text, or as numbers where the model's vocabulary goes beyond the tokenizer's.
std::string readable(const tokens::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  const bool all_known = std::all_of(
      ids.begin(), ids.end(), [&](std::int64_t id) { return tokenizer.token(id).has_value(); });
  return all_known ? tokens::printable(tokenizer.decode(ids, true)) : numbers(ids);
}

}  // namespace

std::string sample_text(models::LanguageModel& model, const TrainConfig& config,
                        const Dataset& data, c10::Device device) {
  const auto tokenizer = !config.tokenizer.empty() ? tokens::load(config.tokenizer)
                         : data.is_text()          ? tokens::bytes()
                                                   : nullptr;
  std::vector<std::int64_t> prompt;
  if (tokenizer) {
    prompt = tokenizer->encode(config.prompt);
  } else {
    std::vector<std::int64_t> targets(static_cast<std::size_t>(data.sequence())), documents;
    prompt.resize(targets.size());
    data.read(Part::kValidation, 0, prompt, targets, documents);
    prompt.resize(static_cast<std::size_t>(std::min(kPromptTokens, documents.front())));
  }
  const auto drawn = models::generate(
      model, prompt, {.tokens = config.sample, .seed = config.seed, .device = device});
  return tokenizer ? config.prompt + readable(*tokenizer, drawn)
                   : numbers(prompt) + " | " + numbers(drawn);
}

namespace {

void write_documents(const std::filesystem::path& directory,
                     const std::map<std::string, std::string>& documents) {
  for (const auto& [name, text] : documents) {
    base::Unfinished draft((directory / name).string(), base::PathKind::kFile);
    archive::detail::write_file(draft.path(), text);
    draft.finish();
  }
}

/// The adapters' parameters, as PEFT names them, and nothing else.
checkpoint::StoredNameOf adapters_only(const models::ModelConfig& model) {
  return [model](const std::string& name) {
    return models::is_adapter(name) ? std::optional(models::peft_name(model, name)) : std::nullopt;
  };
}

at::ScalarType scalar_type(SavedType type) {
  switch (type) {
    case SavedType::kFloat64: return at::kDouble;
    case SavedType::kBFloat16: return at::kBFloat16;
    case SavedType::kFloat16: return at::kHalf;
    case SavedType::kFloat32: break;
  }
  return at::kFloat;
}

}  // namespace

std::string saved_path(const TrainConfig& config) {
  return (std::filesystem::path(config.out) /
          (config.lora.rank > 0 ? format::kAdapterFile : "model.safetensors"))
      .string();
}

std::string save(const TrainConfig& config, const Sharded& sharded) {
  const std::filesystem::path directory(config.out);
  const bool has_adapters = config.lora.rank > 0;
  const std::string path = saved_path(config);
  checkpoint::detail::save_weights(
      sharded, path, {{"format", "pt"}, {"steps", std::to_string(config.steps)}},
      has_adapters ? adapters_only(config.model) : nullptr,
      [&](const auto& put) {
        // Of two runs that end at once, all of one and then all of the other.
        const archive::RootLock lock(directory.string(), kPatience_s);
        auto documents = has_adapters ? adapter_documents(config) : model_documents(config);
        if (!has_adapters) {
          documents["config.json"] = models::config_json(config.model, to_string(config.out_dtype));
        }
        write_documents(directory, documents);
        put();
      },
      has_adapters ? std::nullopt : std::optional(scalar_type(config.out_dtype)));
  return path;
}

}  // namespace fsdp::train::detail
