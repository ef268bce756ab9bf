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
  /// A token that can be read but not be made of text.
  void add_unreachable(std::int64_t id, std::string bytes);
  /// An added token, which may repeat one that is there. @throws Error kCorrupt when the id stands
  /// for something else
  void add_literal(std::int64_t id, const std::string& text);

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::string& path() const { return path_; }
  std::optional<std::string_view> token(std::int64_t id) const;
  std::optional<Id> find(std::string_view bytes) const;
  /// The tokens of the single bytes; -1 where there is none.
  std::array<Id, 256> single_bytes() const;

 private:
  void place(std::int64_t id, std::string bytes);

  std::string path_;
  std::vector<std::optional<std::string>> tokens_;
  StringMap<Id> ids_;
};

/// A byte-level BPE tokenizer in parts.
struct BpeParts {
  std::string name;
  Vocabulary vocabulary{""};
  Merges merges;
  /// Patterns that split text one after the other, in PCRE2's syntax: matches and what lies
  /// between them become pieces.
  std::vector<std::string> stages;
  std::vector<AddedToken> added;
  /// A piece that is a token needs no merges.
  bool whole_pieces_first = false;
  std::optional<std::int64_t> bos, eos;
};

}  // namespace fsdp::tokens::detail
