// SPDX-License-Identifier: Apache-2.0
/// tiktoken's rank files hold neither pattern nor special tokens: both belong to the encoding's
/// name, which is not in the file either. The number of ranks tells the encodings apart.
///
/// *Source*: tiktoken_ext/openai_public.py.
#include <charconv>
#include <cstdint>
#include <utility>

#include "fsdp/base/error.hpp"
#include "tokens/loaders.hpp"
#include "tokens/pattern.hpp"

namespace fsdp::tokens::detail {
namespace {

constexpr const char* kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Special {
  Id id;
  const char* text;
};

struct Encoding {
  std::int64_t ranks;
  const char* name;
  const char* pattern;
  std::vector<Special> special;
  const char *bos, *eos;
};

const std::vector<Encoding>& encodings() {
  constexpr const char* kEnd = "<|endoftext|>";
  static const std::vector<Encoding> kKnown = {
      {50256, "r50k", kGpt2Pattern, {{50256, kEnd}}, kEnd, kEnd},
      {100256,
       "cl100k",
       kCl100kPattern,
       {{100257, kEnd},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}},
       kEnd,
       kEnd},
      {199998, "o200k", kO200kPattern, {{199999, kEnd}, {200018, "<|endofprompt|>"}}, kEnd, kEnd},
  };
  return kKnown;
}

/// The value of a base64 digit, -1 for another character.
int digit(char character) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t at = kDigits.find(character);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

/// Nothing for text that is no base64 with its padding.
std::optional<std::string> from_base64(std::string_view text) {
  std::size_t padding = 0;
  while (text.ends_with('=') && padding < 2) {
    text.remove_suffix(1);
    ++padding;
  }
  if (text.empty() || (text.size() + padding) % 4 != 0) {
    return std::nullopt;
  }
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char character : text) {
    const int value = digit(character);
    if (value < 0) {
      return std::nullopt;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xff));
    }
  }
  return bytes;
}

struct Line {
  std::string bytes;
  std::int64_t rank = 0;
};

std::optional<Line> parse_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  auto bytes = from_base64(line.substr(0, space));
  Line parsed;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, parsed.rank);
  if (!bytes || error != std::errc() || stop != end) {
    return std::nullopt;
  }
  parsed.bytes = std::move(*bytes);
  return parsed;
}

/// tiktoken joins any two neighbours that make a token; so every way to part a token is a merge.
void add_merges(BpeParts& parts) {
  for (std::int64_t id = 0; id < parts.vocabulary.size(); ++id) {
    const std::string_view whole = parts.vocabulary.token(id).value_or("");
    for (std::size_t cut = 1; cut < whole.size(); ++cut) {
      const auto left = parts.vocabulary.find(whole.substr(0, cut));
      const auto right = left ? parts.vocabulary.find(whole.substr(cut)) : std::nullopt;
      if (right) {
        const Id joined = static_cast<Id>(id);
        parts.merges.add(*left, *right, {.rank = joined, .id = joined});
      }
    }
  }
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  return parse_line(text.substr(0, text.find('\n'))).has_value();
}

BpeParts parse_tiktoken(const std::string& path, std::string_view text) {
  BpeParts parts;
  parts.vocabulary = Vocabulary(path);
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) {
      continue;
    }
    auto parsed = parse_line(line);
    FSDP_CHECK(parsed, ErrorCode::kCorrupt, "'", path, "': line ", number, " is '",
               printable(line.substr(0, 40)), "', expected base64 and a rank");
    parts.vocabulary.add(parsed->rank, std::move(parsed->bytes));
  }
  for (const Encoding& encoding : encodings()) {
    if (encoding.ranks != parts.vocabulary.size()) {
      continue;
    }
    add_merges(parts);
    parts.name = std::string("tiktoken (") + encoding.name + ")";
    parts.stages = {to_pcre2(encoding.pattern)};
    parts.whole_pieces_first = true;
    for (const Special& special : encoding.special) {
      parts.vocabulary.add_literal(special.id, special.text);
      parts.added.push_back({.id = special.id, .text = special.text, .is_special = true});
    }
    set_ends(parts, TokenizerConfig{.bos = encoding.bos, .eos = encoding.eos});
    return parts;
  }
  fail(
      ErrorCode::kUnsupported, "'", path, "' holds ", parts.vocabulary.size(),
      " ranks, which is none of the known encodings (r50k 50256, cl100k 100256, o200k 199998): its "
      "pattern and special tokens are not in the file; use the model's tokenizer.json");
}

}  // namespace fsdp::tokens::detail
