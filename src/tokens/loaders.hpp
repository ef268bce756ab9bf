// SPDX-License-Identifier: Apache-2.0
/// One loader a file format. All throw as fsdp::tokens::load().
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "fsdp/tokens/tokenizer.hpp"
#include "tokens/vocabulary.hpp"

namespace fsdp::tokens::detail {

/// What stands in `tokenizer_config.json`.
struct TokenizerConfig {
  std::string tokenizer_class = {};  ///< empty: not said
  std::optional<std::string> bos, eos;
};
TokenizerConfig parse_tokenizer_config(const std::string& path, std::string_view text);

/// Sets bos and eos of `parts`: those that `config` names, without one those that go by their usual
/// names. @throws Error kCorrupt when the vocabulary lacks a token that `config` names
void set_ends(BpeParts& parts, const std::optional<TokenizerConfig>& config);

/// Hugging Face's tokenizer.json.
BpeParts parse_tokenizer_json(const std::string& path, std::string_view text);

/// A vocabulary as an object of token and id, with its merges line by line.
BpeParts parse_gpt2_files(const std::string& vocabulary_path, std::string_view vocabulary,
                          const std::string& merges_path, std::string_view merges);

/// tiktoken's lines of base64 and rank; which encoding it is follows from their number.
BpeParts parse_tiktoken(const std::string& path, std::string_view text);
bool looks_like_tiktoken(std::string_view text);

// Shared by the two loaders of byte-level vocabularies.

/// Adds the tokens of an object of token and id, written in the byte alphabet.
void add_byte_level_tokens(Vocabulary& vocabulary, const nlohmann::json& tokens);
/// The merge of two tokens that are written in the byte alphabet; `number` is its rank.
void add_byte_level_merge(BpeParts& parts, const std::string& path, std::size_t number,
                          std::string_view left, std::string_view right);

}  // namespace fsdp::tokens::detail
