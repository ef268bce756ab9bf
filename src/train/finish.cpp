// SPDX-License-Identifier: Apache-2.0
/// What a run leaves behind: the saved model and a sample.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fsdp/base/error.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "train/summary.hpp"

namespace fsdp::train::detail {
namespace {

constexpr std::int64_t kPromptTokens = 8;

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
  return all_known ? tokens::printable(tokenizer.decode(ids)) : numbers(ids);
}

/// Whoever opens the saved model finds its tokenizer beside it.
void copy_tokenizer(const std::string& tokenizer, const std::filesystem::path& directory) {
  for (const std::string& file : tokens::files_of(tokenizer)) {
    const std::filesystem::path target = directory / std::filesystem::path(file).filename();
    std::error_code error;
    if (!std::filesystem::equivalent(file, target, error)) {
      std::filesystem::copy_file(file, target, std::filesystem::copy_options::overwrite_existing,
                                 error);
      FSDP_CHECK(!error, ErrorCode::kIo, "'", target.string(),
                 "' cannot be written: ", error.message());
    }
  }
}

}  // namespace

std::string sample_text(models::GPT& model, const TrainConfig& config, const data::Corpus& corpus,
                        const data::Split& parts) {
  const auto tokenizer = !config.tokenizer.empty() ? tokens::load(config.tokenizer)
                         : corpus.is_text()        ? tokens::bytes()
                                                   : nullptr;
  std::vector<std::int64_t> prompt;
  if (tokenizer) {
    prompt = tokenizer->encode(config.prompt);
  } else {
    prompt.resize(static_cast<std::size_t>(std::min(kPromptTokens, parts.validation.size())));
    corpus.read(parts.validation.begin, prompt);
  }
  const auto drawn =
      models::generate(model, prompt, {.tokens = config.sample, .seed = config.seed});
  return tokenizer ? config.prompt + readable(*tokenizer, drawn)
                   : numbers(prompt) + " | " + numbers(drawn);
}

std::string save(const TrainConfig& config, const Sharded& sharded) {
  const std::filesystem::path directory(config.out);
  const std::string path = (directory / "model.safetensors").string();
  checkpoint::save_safetensors(sharded, path,
                               {{"format", "pt"}, {"steps", std::to_string(config.steps)}});
  if (sharded.world().rank() == 0) {
    const std::string config_path = (directory / "config.json").string();
    std::ofstream file(config_path);
    file << models::config_json(config.model, to_string(config.dtype));
    file.close();
    FSDP_CHECK(file, ErrorCode::kIo, "'", config_path,
               "' cannot be written: ", std::strerror(errno));
    if (!config.tokenizer.empty()) {
      copy_tokenizer(config.tokenizer, directory);
    }
  }
  return path;
}

}  // namespace fsdp::train::detail
