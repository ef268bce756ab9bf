// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "fsdp/base/error.hpp"
#include "tokens/byte_alphabet.hpp"
#include "tokens/json_file.hpp"
#include "tokens/loaders.hpp"
#include "tokens/pattern.hpp"

namespace fsdp::tokens::detail {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

/// Takes the next line off `text`, without its end.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

}  // namespace

void add_byte_level_tokens(Vocabulary& vocabulary, const nlohmann::json& tokens) {
  FSDP_CHECK(tokens.is_object(), ErrorCode::kCorrupt, "'", vocabulary.path(),
             "': the vocabulary is not an object of tokens and ids");
  for (const auto& [symbols, id] : tokens.items()) {
    FSDP_CHECK(id.is_number_integer(), ErrorCode::kCorrupt, "'", vocabulary.path(),
               "': the id of the token '", printable(symbols), "' is ", id.dump(),
               ", expected an integer");
    auto bytes = bytes_of_symbols(symbols);
    if (bytes && !bytes->empty()) {
      vocabulary.add(id.get<std::int64_t>(), std::move(*bytes));
    } else {
      vocabulary.add_unreachable(id.get<std::int64_t>(), symbols);
    }
  }
}

void add_byte_level_merge(BpeParts& parts, const std::string& path, std::size_t number,
                          std::string_view left, std::string_view right) {
  const auto find = [&](const std::optional<std::string>& bytes) {
    return bytes ? parts.vocabulary.find(*bytes) : std::nullopt;
  };
  const auto left_bytes = bytes_of_symbols(left), right_bytes = bytes_of_symbols(right);
  const auto left_id = find(left_bytes), right_id = find(right_bytes);
  const auto joined = left_bytes && right_bytes && left_id && right_id
                          ? find(*left_bytes + *right_bytes)
                          : std::nullopt;
  FSDP_CHECK(joined, ErrorCode::kCorrupt, "'", path, "': merge ", number, " joins '",
             printable(left), "' and '", printable(right), "', but the vocabulary lacks ",
             !left_id    ? "the first"
             : !right_id ? "the second"
                         : "the two together");
  parts.merges.add(*left_id, *right_id, {.rank = static_cast<std::int32_t>(number), .id = *joined});
}

BpeParts parse_gpt2_files(const std::string& vocabulary_path, std::string_view vocabulary,
                          const std::string& merges_path, std::string_view merges) {
  BpeParts parts;
  parts.name = "byte-level BPE (GPT-2)";
  parts.vocabulary = Vocabulary(vocabulary_path);
  parts.stages = {to_pcre2(kGpt2Pattern)};
  add_byte_level_tokens(parts.vocabulary, parse_json(vocabulary_path, vocabulary));
  if (merges.starts_with("#version")) {
    take_line(merges);
  }
  for (std::size_t number = 0; !merges.empty();) {
    const std::string_view line = take_line(merges);
    if (line.empty()) {
      continue;
    }
    const std::size_t space = line.find(' ');
    FSDP_CHECK(space != std::string_view::npos && space == line.rfind(' '), ErrorCode::kCorrupt,
               "'", merges_path, "': merge ", number, " is '", printable(line),
               "', expected two tokens with a space between");
    add_byte_level_merge(parts, merges_path, number, line.substr(0, space), line.substr(space + 1));
    ++number;
  }
  if (const auto id = parts.vocabulary.find(kEndOfText)) {
    parts.added.push_back({.id = *id, .text = kEndOfText, .is_special = true});
  }
  return parts;
}

}  // namespace fsdp::tokens::detail
