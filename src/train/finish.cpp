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
#include "train/summary.hpp"

namespace fsdp::train::detail {
namespace {

constexpr std::int64_t kPromptTokens = 8;

std::string printable(const std::vector<std::int64_t>& bytes) {
  std::string text;
  for (const std::int64_t byte : bytes) {
    const auto character = static_cast<unsigned char>(byte);
    if (character == '\n' || (character >= 0x20 && character < 0x7f)) {
      text.push_back(static_cast<char>(character));
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", character);
      text += escaped;
    }
  }
  return text;
}

std::string numbers(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) {
    text += (text.empty() ? "" : " ") + std::to_string(token);
  }
  return text;
}

}  // namespace

std::string sample_text(models::GPT& model, const TrainConfig& config, const data::Corpus& corpus,
                        const data::Split& parts) {
  std::vector<std::int64_t> prompt;
  if (corpus.is_text()) {
    for (const char character : config.prompt) {
      prompt.push_back(static_cast<unsigned char>(character));
    }
  } else {
    prompt.resize(static_cast<std::size_t>(std::min(kPromptTokens, parts.validation.size())));
    corpus.read(parts.validation.begin, prompt);
  }
  const auto drawn =
      models::generate(model, prompt, {.tokens = config.sample, .seed = config.seed});
  return corpus.is_text() ? config.prompt + printable(drawn)
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
  }
  return path;
}

}  // namespace fsdp::train::detail
