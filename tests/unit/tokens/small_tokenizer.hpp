// SPDX-License-Identifier: Apache-2.0
/// Vocabularies small enough to be understood, as the files that loaders read.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokens/byte_alphabet.hpp"

namespace fsdp::test {

using Pair = std::pair<std::string, std::string>;

/// A string as byte-level vocabularies write it.
inline std::string symbols(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += tokens::detail::symbol_of_byte(static_cast<unsigned char>(byte));
  }
  return text;
}

/// The 256 bytes as tokens 0 to 255 in the order of their values, then one token for each merge.
inline nlohmann::json vocabulary(const std::vector<Pair>& merges) {
  nlohmann::json tokens = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) {
    tokens[symbols(std::string(1, static_cast<char>(byte)))] = byte;
  }
  int next = 256;
  for (const auto& [left, right] : merges) {
    const std::string joined = symbols(left + right);
    if (!tokens.contains(joined)) {
      tokens[joined] = next++;
    }
  }
  return tokens;
}

inline nlohmann::json merge_list(const std::vector<Pair>& merges) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    list.push_back(symbols(left) + " " + symbols(right));
  }
  return list;
}

/// A tokenizer.json of byte-level BPE with GPT-2's pattern.
inline nlohmann::json tokenizer_json(const std::vector<Pair>& merges) {
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary(merges)}, {"merges", merge_list(merges)}}}};
}

inline nlohmann::json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace fsdp::test
