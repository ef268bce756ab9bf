// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fsdp/base/error.hpp"
#include "tokens/json_file.hpp"
#include "tokens/loaders.hpp"

namespace fsdp::tokens::detail {
namespace {

/// A token is written as its text, or as an object that holds it.
std::optional<std::string> token_text(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) {
    return std::nullopt;
  }
  const nlohmann::json& value =
      found->is_object() && found->contains("content") ? found->at("content") : *found;
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

std::optional<std::int64_t> find_added(const BpeParts& parts, std::string_view text) {
  const auto found = std::find_if(parts.added.begin(), parts.added.end(),
                                  [&](const AddedToken& token) { return token.text == text; });
  return found == parts.added.end() ? std::nullopt : std::optional<std::int64_t>(found->id);
}

std::optional<std::int64_t> find_any(const BpeParts& parts,
                                     std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    if (const auto id = find_added(parts, text)) {
      return id;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> named(const BpeParts& parts, const std::optional<std::string>& text,
                                  const char* role) {
  if (!text) {
    return std::nullopt;
  }
  std::optional<std::int64_t> id = find_added(parts, *text);
  if (!id) {
    if (const auto plain = parts.vocabulary.find(*text)) {
      id = *plain;
    }
  }
  FSDP_CHECK(id, ErrorCode::kCorrupt, "'", parts.vocabulary.path(), "' has no token '",
             printable(*text), "', which tokenizer_config.json names as ", role);
  return id;
}

}  // namespace

TokenizerConfig parse_tokenizer_config(const std::string& path, std::string_view text) {
  const nlohmann::json config = parse_json(path, text);
  const auto found = config.find("tokenizer_class");
  return {.tokenizer_class = found != config.end() && found->is_string() ? found->get<std::string>()
                                                                         : std::string(),
          .bos = token_text(config, "bos_token"),
          .eos = token_text(config, "eos_token")};
}

void set_ends(BpeParts& parts, const std::optional<TokenizerConfig>& config) {
  if (config) {
    parts.bos = named(parts, config->bos, "bos_token");
    parts.eos = named(parts, config->eos, "eos_token");
    return;
  }
  parts.bos = find_any(parts, {"<|begin_of_text|>", "<s>", "<|endoftext|>"});
  parts.eos = find_any(parts, {"<|end_of_text|>", "</s>", "<|endoftext|>"});
}

}  // namespace fsdp::tokens::detail
