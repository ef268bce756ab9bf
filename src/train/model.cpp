// SPDX-License-Identifier: Apache-2.0
#include "train/model.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/regular_file.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/checkpoint/weights.hpp"
#include "fsdp/engine/deferred_init.hpp"
#include "fsdp/models/lora.hpp"
#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::train::detail {

std::shared_ptr<models::LanguageModel> make_model(const TrainConfig& config) {
  torch::manual_seed(config.seed);
  // No rank ever holds the whole model: weights come to be when it is sharded.
  return deferred_init([&] {
    const auto model = models::make_model(config.model);
    if (config.dtype == WeightType::kFloat64) {
      model->to(torch::kFloat64);
    }
    if (config.lora.rank > 0) {
      models::add_adapters(*model, config.lora);
    }
    return model;
  });
}

namespace {

/// Only adapters may be missing in a file of whole weights.
void check_base(const checkpoint::LoadReport& report) {
  std::string problems;
  for (const std::string& name : report.missing) {
    if (!models::is_adapter(name)) {
      problems += "; missing: " + name;
    }
  }
  for (const std::string& name : report.unexpected) {
    problems += "; not in the model: " + name;
  }
  for (const std::string& text : report.mismatched) {
    problems += "; of another shape: " + text;
  }
  FSDP_CHECK(problems.empty(), ErrorCode::kMismatch, "'", report.path,
             "' does not hold the weights that its config.json describes", problems,
             report.missing.empty() ? "" : archive::hint_for_part(report.path));
}

void load_adapters(const TrainConfig& config, Sharded& sharded) {
  const std::string path = (std::filesystem::path(config.adapter) / format::kAdapterFile).string();
  const auto report = checkpoint::load_weights(
      path, sharded,
      {.name_of = [&](const std::string& stored) -> std::optional<std::string> {
         return models::parameter_of_peft(config.model, stored);
       },
       .strict = false});
  std::string problems;
  for (const std::string& name : report.missing) {
    problems += models::is_adapter(name) ? "; missing: " + name : "";
  }
  for (const std::string& name : report.unexpected) {
    problems += "; not among the adapters here: " + name;
  }
  for (const std::string& text : report.mismatched) {
    problems += "; of another shape: " + text;
  }
  FSDP_CHECK(problems.empty(), ErrorCode::kMismatch, "'", path,
             "' does not hold the adapters that its configuration describes", problems);
}

}  // namespace

void load_initial(const TrainConfig& config, Sharded& sharded) {
  const bool adapters_learn = config.lora.rank > 0;
  const auto report = checkpoint::load_weights(
      config.init, sharded,
      {.name_of =
           [&](const std::string& stored) { return models::parameter_of(config.model, stored); },
       .adapter = adapters_learn ? "" : config.adapter,
       .strict = false});
  check_base(report);
  if (adapters_learn && !config.adapter.empty()) {
    load_adapters(config, sharded);
  }
}

namespace {

std::string read_file(const std::string& path) {
  base::need_regular(path);
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  FSDP_CHECK(file, ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));
  return text;
}

}  // namespace

bool is_of_tokenizer(const std::string& name) {
  static const std::set<std::string> kNames = {"tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "merges.txt",
                                               "encoder.json",
                                               "vocab.bpe",
                                               "tokenizer.model",
                                               "chat_template.jinja"};
  return kNames.contains(name) || name.ends_with(".tiktoken");
}

std::map<std::string, std::string> model_documents(const TrainConfig& config) {
  std::map<std::string, std::string> documents, tokenizer;
  if (!config.init.empty()) {
    documents = archive::WeightSource(config.init).documents();
  }
  documents.erase(format::kAdapterConfig);
  if (!config.tokenizer.empty()) {
    for (const std::string& file : tokens::files_of(config.tokenizer)) {
      tokenizer[std::filesystem::path(file).filename().string()] = read_file(file);
    }
  }
  // Files of another tokenizer would be read first, or with this one's.
  const bool is_other = std::any_of(tokenizer.begin(), tokenizer.end(), [&](const auto& file) {
    return !documents.contains(file.first) || documents[file.first] != file.second;
  });
  if (config.bytes || is_other || (!config.tokenizer.empty() && tokenizer.empty())) {
    std::erase_if(documents, [](const auto& file) { return is_of_tokenizer(file.first); });
  }
  documents.merge(tokenizer);
  documents["config.json"] = models::config_json(config.model, to_string(config.dtype));
  if (config.lora.rank > 0) {
    documents.merge(adapter_documents(config));
  }
  return documents;
}

std::map<std::string, std::string> adapter_documents(const TrainConfig& config) {
  const std::string base = std::filesystem::absolute(config.init).lexically_normal().string();
  return {{format::kAdapterConfig, models::adapter_config_json(config.model, config.lora, base)}};
}

}  // namespace fsdp::train::detail
