// SPDX-License-Identifier: Apache-2.0
#include "tokens/character_tokens.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "fsdp/base/error.hpp"
#include "tokens/utf8.hpp"

namespace fsdp::tokens::detail {
namespace {

/// "<0x0A>" -> 10.
std::optional<unsigned char> byte_named(std::string_view token) {
  unsigned value = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  const char* const end = token.data() + 5;
  const auto [stopped, error] = std::from_chars(token.data() + 3, end, value, 16);
  return error == std::errc() && stopped == end ? std::optional(static_cast<unsigned char>(value))
                                                : std::nullopt;
}

std::string with_spaces(std::string_view spelling) {
  std::string text;
  while (!spelling.empty()) {
    const bool is_mark = spelling.starts_with(kSpaceMark);
    text += is_mark ? ' ' : spelling.front();
    spelling.remove_prefix(is_mark ? kSpaceMark.size() : 1);
  }
  return text;
}

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | right;
}

/// Calls `visit` with the code points of each two neighbours and where the second one begins, until
/// it returns true. Stops at what is no UTF-8.
template <class Visit>
void for_neighbours(std::string_view text, Visit&& visit) {
  std::uint32_t before = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) {
      return;
    }
    const std::uint32_t now = code_point(text.substr(at));
    if (at > 0 && visit(before, now, at)) {
      return;
    }
    before = now;
    at += bytes;
  }
}

}  // namespace

void add_character_tokens(BpeParts& parts, const nlohmann::json& tokens, bool byte_fallback) {
  Vocabulary& vocabulary = parts.vocabulary;
  FSDP_CHECK(tokens.is_object(), ErrorCode::kCorrupt, "'", vocabulary.path(),
             "': the vocabulary is not an object of tokens and ids");
  parts.characters->bytes.fill(-1);
  for (const auto& [spelling, id] : tokens.items()) {
    FSDP_CHECK(id.is_number_integer() && !spelling.empty(), ErrorCode::kCorrupt, "'",
               vocabulary.path(), "': the id of the token '", printable(spelling), "' is ",
               id.dump(), ", expected an integer and a token that is not empty");
    const auto number = id.get<std::int64_t>();
    const auto byte = byte_fallback ? byte_named(spelling) : std::nullopt;
    vocabulary.add_spelled(number, spelling,
                           byte ? std::string(1, static_cast<char>(*byte)) : with_spaces(spelling));
    if (byte) {
      parts.characters->bytes[*byte] = static_cast<Id>(number);
    }
  }
}

void add_character_merge(BpeParts& parts, const std::string& path, std::size_t number,
                         std::string_view left, std::string_view right) {
  const auto left_id = parts.vocabulary.find(left), right_id = parts.vocabulary.find(right);
  const auto joined = parts.vocabulary.find(std::string(left) + std::string(right));
  FSDP_CHECK(left_id && right_id && joined, ErrorCode::kCorrupt, "'", path, "': merge ", number,
             " joins '", printable(left), "' and '", printable(right),
             "', but the vocabulary lacks ",
             !left_id    ? "the first"
             : !right_id ? "the second"
                         : "the two together");
  parts.merges.add(*left_id, *right_id, {.rank = static_cast<std::int32_t>(number), .id = *joined});
}

SafeCuts::SafeCuts(const BpeParts& parts) {
  const CharacterParts& own = *parts.characters;
  is_off_ = own.fuses_unknown && own.unknown && std::ranges::count(own.bytes, -1) > 0;
  if (is_off_) {
    return;
  }
  for (const auto& [spelling, id] : parts.vocabulary.spellings()) {
    for_neighbours(spelling, [&](std::uint32_t left, std::uint32_t right, std::size_t) {
      neighbours_.insert(pair_of(left, right));
      return false;
    });
  }
}

std::size_t SafeCuts::first(std::string_view text) const {
  std::size_t cut = text.size();
  if (!is_off_) {
    for_neighbours(text, [&](std::uint32_t left, std::uint32_t right, std::size_t at) {
      const bool is_safe = !neighbours_.contains(pair_of(left, right));
      cut = is_safe ? at : cut;
      return is_safe;
    });
  }
  return cut;
}

}  // namespace fsdp::tokens::detail
