// SPDX-License-Identifier: Apache-2.0
/// What a loader has read, in the form that BpeTokenizer works with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fsdp/tokens/tokenizer.hpp"
#include "tokens/merges.hpp"
#include "tokens/normalizer.hpp"

namespace fsdp::tokens::detail {

/// So that maps of strings are asked with views.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

/// More ids than any published vocabulary has: a broken file must not ask for all memory.
constexpr std::int64_t kMostIds = std::int64_t{1} << 21;

/// A token that is found in the text as it stands, before anything else is.
struct AddedToken {
  Id id = 0;
  std::string text;
  bool is_special = false;
  /// Looked for in what the others leave over: Hugging Face's `normalized`.
  bool is_second = false;
};

/// Tokens by id and by their bytes.
class Vocabulary {
 public:
  /// `path` is for messages.
  explicit Vocabulary(std::string path) : path_(std::move(path)) {}

  /// A token that stands for `bytes`. @throws Error kCorrupt when the id or the bytes are taken,
  /// or for an id that is negative or beyond 2^21
  void add(std::int64_t id, std::string bytes);
  /// A token that is found as `spelling` and stands for `bytes`, which others may, too.
  void add_spelled(std::int64_t id, const std::string& spelling, std::string bytes);
  /// A token that can be read but not be made of text.
  void add_unreachable(std::int64_t id, std::string bytes);
  /// An added token, which may repeat one that is there. @throws Error kCorrupt when the id stands
  /// for something else
  void add_literal(std::int64_t id, const std::string& text);

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::string& path() const { return path_; }
  std::optional<std::string_view> token(std::int64_t id) const;
  /// By its bytes, or its spelling.
  std::optional<Id> find(std::string_view bytes) const;
  /// All bytes and spellings that can be found.
  const StringMap<Id>& spellings() const { return ids_; }
  /// The tokens of the single bytes; -1 where there is none.
  std::array<Id, 256> single_bytes() const;

 private:
  void place(std::int64_t id, std::string bytes);

  std::string path_;
  std::vector<std::optional<std::string>> tokens_;
  StringMap<Id> ids_;
};

/// How the begin of a word is marked where tokens are spelled in characters: a space is U+2581.
struct Metaspace {
  enum class Prepend { kNever, kFirst, kAlways };
  /// Where a mark goes in front of text without one: in front of a text, or of each part of it that
  /// added tokens leave over.
  Prepend prepend = Prepend::kAlways;
  bool splits = false;  ///< each mark begins a piece
};

/// What tokens of characters have beside those of bytes.
struct CharacterParts {
  std::optional<Metaspace> metaspace = {};
  std::array<Id, 256> bytes{};  ///< tokens for the bytes of a character without one; -1: none
  std::optional<Id> unknown = {};
  bool fuses_unknown = false;  ///< one token for all unknown characters in a row
};

/// A BPE tokenizer in parts.
struct BpeParts {
  std::string name;
  Vocabulary vocabulary{""};
  Merges merges;
  /// Patterns that split text one after the other, in PCRE2's syntax: matches and what lies
  /// between them become pieces.
  std::vector<std::string> stages;
  std::vector<AddedToken> added;
  /// What is done to text between added tokens, before it is cut.
  Normalizer normalizer = {};
  /// Tokens are spelled in characters; none: in bytes.
  std::optional<CharacterParts> characters = {};
  /// A piece that is a token needs no merges.
  bool whole_pieces_first = false;
  std::optional<std::int64_t> bos, eos;
  bool strips_space = false;  ///< decoding takes one off the begin of a text
  std::string begin = {};     ///< the special token in front of each text; empty: none
};

}  // namespace fsdp::tokens::detail
