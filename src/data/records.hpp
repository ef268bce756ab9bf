// SPDX-License-Identifier: Apache-2.0
/// Records of JSON lines, and what of them is learnt.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/data/chat_template.hpp"
#include "fsdp/data/samples.hpp"
#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::data::detail {

/// A document as tokens.
struct Sample {
  std::vector<std::int64_t> tokens;
  std::vector<bool> learned;
  bool is_text = false;
};

/// Turns records into documents.
class SampleMaker {
 public:
  /// `model`: directory with the chat template, read when the first messages come.
  SampleMaker(const tokens::Tokenizer& tokenizer, std::string model)
      : tokenizer_(tokenizer), model_(std::move(model)) {}

  /// The documents of a line; none of an empty one. `where` is its file and number, for messages.
  /// @throws Error kInvalidArgument
  std::vector<Sample> of_line(std::string_view line, const std::string& where);

  const SampleCounts& counts() const { return counts_; }

 private:
  std::vector<std::int64_t> encode(const std::string& text, bool is_whole) const;
  Sample of_text(const std::string& text) const;
  Sample of_pair(const std::string& prompt, const std::string& completion);
  std::vector<Sample> of_messages(const nlohmann::ordered_json& record, const std::string& where);
  Sample of_answer_lists(const nlohmann::ordered_json& record, const std::string& where);
  /// Two texts of which the second goes on from the first; what it adds is learnt.
  Sample of_prefix(const std::string& before, const std::string& all);
  const ChatTemplate& chat();
  std::string rendered(const nlohmann::ordered_json& messages, bool opens_answer,
                       const nlohmann::ordered_json& record, const std::string& where);

  const tokens::Tokenizer& tokenizer_;
  std::string model_;
  std::optional<ChatTemplate> chat_;
  SampleCounts counts_;
};

}  // namespace fsdp::data::detail
