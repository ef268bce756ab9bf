// SPDX-License-Identifier: Apache-2.0
/// Tokens that are spelled in characters, as sentencepiece makes them: a space is U+2581, and bytes
/// of characters without a token are tokens called "<0x0A>". Kudo and Richardson, "SentencePiece"
/// (2018).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_set>

#include "tokens/vocabulary.hpp"

namespace fsdp::tokens::detail {

/// U+2581, which stands for a space.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// Adds the tokens of an object of token and id. With `byte_fallback`, "<0x0A>" stands for a byte,
/// also in `parts.characters`.
void add_character_tokens(BpeParts& parts, const nlohmann::json& tokens, bool byte_fallback);

/// The merge of two tokens; `number` is its rank.
void add_character_merge(BpeParts& parts, const std::string& path, std::size_t number,
                         std::string_view left, std::string_view right);

/// NOTE [Where a text may be cut]: sentencepiece's models are given whole texts, of which each is
/// one piece. No token spans a place whose two neighbours stand together in no token, so what lies
/// on both sides is merged as it would be by itself; pieces are cut there, and may be remembered.
class SafeCuts {
 public:
  /// None at all where cuts would show: unknown characters in a row that are one token.
  explicit SafeCuts(const BpeParts& parts);

  /// Bytes at the begin of `text` (valid UTF-8, not empty) up to the first such place.
  std::size_t first(std::string_view text) const;

 private:
  std::unordered_set<std::uint64_t> neighbours_;
  bool is_off_ = false;
};

}  // namespace fsdp::tokens::detail
