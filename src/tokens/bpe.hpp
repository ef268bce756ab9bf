// SPDX-License-Identifier: Apache-2.0
/// Byte-pair encoding, of bytes or of characters.
///
/// NOTE [How text becomes tokens]: added tokens are cut out first. What lies between them is parted
/// into runs of valid UTF-8 and runs of other bytes. Valid text is normalized and goes through the
/// stages, each of which cuts what the one before made; every piece that comes out is merged by
/// itself, as is a run of other bytes as a whole. Added tokens that are looked for in normalized
/// text are cut out after that step. Language repeats its pieces, so they are looked up before they
/// are merged.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/tokens/tokenizer.hpp"
#include "tokens/added_tokens.hpp"
#include "tokens/character_tokens.hpp"
#include "tokens/regex.hpp"
#include "tokens/vocabulary.hpp"

namespace fsdp::tokens::detail {

class BpeTokenizer final : public Tokenizer {
 public:
  /// @throws Error kUnsupported for a pattern that does not compile
  explicit BpeTokenizer(BpeParts parts);

  const std::string& name() const override { return parts_.name; }
  std::int64_t vocab_size() const override { return parts_.vocabulary.size(); }
  std::optional<std::string_view> token(std::int64_t id) const override {
    return parts_.vocabulary.token(id);
  }
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options,
              const TokenSink& sink) const override;

 private:
  /// Two looks at the text, see AddedToken::is_second.
  struct Literals {
    AddedTokens first, second;
  };
  class Pieces;
  class Run;

  static Literals literals(const BpeParts& parts, bool with_special);

  BpeParts parts_;
  std::array<Id, 256> single_bytes_;
  std::vector<Regex> stages_;
  std::optional<SafeCuts> cuts_;  ///< of tokens of characters
  Literals plain_, with_special_;
  mutable std::mutex mutex_;  ///< guards the stages' match data and the known pieces
  std::unique_ptr<Pieces> pieces_;

 public:
  ~BpeTokenizer() override;
};

}  // namespace fsdp::tokens::detail
