// SPDX-License-Identifier: Apache-2.0
#include "tokens/bpe.hpp"

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"
#include "tokens/utf8.hpp"

namespace fsdp::tokens::detail {
namespace {

/// Pieces beyond this are rare and not worth their memory.
constexpr std::size_t kLongestKnownPiece = 64;
/// About 40 MB; then all are forgotten, and those in use come back soon.
constexpr std::size_t kMostKnownPieces = std::size_t{1} << 18;
constexpr std::size_t kLongestPiece = std::size_t{1} << 30;
/// Tokens that are handed over at once.
constexpr std::size_t kBatch = std::size_t{1} << 15;

}  // namespace

/// Turns pieces into tokens and remembers them.
class BpeTokenizer::Pieces {
 public:
  explicit Pieces(const BpeTokenizer& owner) : owner_(owner) {}

  void append(std::string_view piece, bool drop_unknown, std::vector<std::int64_t>& ids) {
    if (piece.size() <= kLongestKnownPiece) {
      if (const auto known = known_.find(piece); known != known_.end()) {
        const auto begin = ids_.begin() + known->second.begin;
        ids.insert(ids.end(), begin, begin + known->second.count);
        return;
      }
    }
    const bool is_whole = merge(piece, drop_unknown);
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    if (is_whole && piece.size() <= kLongestKnownPiece) {
      remember(piece);
    }
  }

 private:
  /// Where the tokens of a piece lie in ids_.
  struct TokenRange {
    std::uint32_t begin = 0, count = 0;
  };

  void remember(std::string_view piece) {
    if (known_.size() == kMostKnownPieces) {
      known_.clear();
      ids_.clear();
    }
    known_.emplace(piece, TokenRange{.begin = static_cast<std::uint32_t>(ids_.size()),
                                     .count = static_cast<std::uint32_t>(symbols_.size())});
    ids_.insert(ids_.end(), symbols_.begin(), symbols_.end());
  }

  /// Puts the tokens of `piece` into symbols_. Returns whether no byte of it was dropped.
  bool merge(std::string_view piece, bool drop_unknown) {
    FSDP_CHECK(piece.size() <= kLongestPiece, ErrorCode::kUnsupported, owner_.name(),
               ": a text without a place to cut for ", piece.size(), " bytes; ", kLongestPiece,
               " are possible");
    symbols_.clear();
    if (owner_.parts_.whole_pieces_first) {
      if (const auto whole = owner_.parts_.vocabulary.find(piece)) {
        symbols_.push_back(*whole);
        return true;
      }
    }
    for (const char character : piece) {
      const auto byte = static_cast<unsigned char>(character);
      const Id id = owner_.single_bytes_[byte];
      if (id < 0 && drop_unknown) {
        continue;
      }
      FSDP_CHECK(id >= 0, ErrorCode::kInvalidArgument, owner_.name(), ": '", printable(piece),
                 "' cannot be encoded, for the vocabulary has no token for byte ",
                 static_cast<int>(byte), "; fsdp tokenize --drop-unknown leaves such bytes out");
      symbols_.push_back(id);
    }
    const bool is_whole = symbols_.size() == piece.size();
    merger_.run(owner_.parts_.merges, symbols_);
    return is_whole;
  }

  const BpeTokenizer& owner_;
  StringMap<TokenRange> known_;
  std::vector<Id> ids_;
  std::vector<Id> symbols_;
  Merger merger_;
};

/// One call of encode(). See NOTE [How text becomes tokens].
class BpeTokenizer::Run {
 public:
  Run(const BpeTokenizer& owner, bool drop_unknown, const TokenSink& sink, std::string_view text)
      : owner_(owner), drop_unknown_(drop_unknown), sink_(sink), begin_(text.data()) {
    ids_.reserve(kBatch + kLongestKnownPiece);
  }

  void look_for(const AddedTokens& literals, std::string_view text, const AddedTokens* after) {
    for (std::size_t at = 0; at < text.size();) {
      const AddedTokens::Found found = literals.next(text, at);
      const std::string_view between = text.substr(at, found.begin - at);
      if (after != nullptr) {
        look_for(*after, between, nullptr);
      } else {
        plain(between);
      }
      if (found.id >= 0) {
        ids_.push_back(found.id);
      }
      at = found.end;
    }
  }

  void finish(std::string_view text) { hand_over(text.data() + text.size()); }

 private:
  void plain(std::string_view text) {
    while (!text.empty()) {
      const std::size_t valid = valid_bytes(text);
      stage(0, text.substr(0, valid));
      text.remove_prefix(valid);
      std::size_t broken = 0;
      while (broken < text.size() && character_bytes(text.substr(broken)) == 0) {
        ++broken;
      }
      piece(text.substr(0, broken));
      text.remove_prefix(broken);
    }
  }

  void stage(std::size_t number, std::string_view text) {
    if (number == owner_.stages_.size()) {
      return piece(text);
    }
    const Regex& regex = owner_.stages_[number];
    for (std::size_t at = 0; at < text.size();) {
      const auto match = regex.next(text, at);
      const std::size_t cut = match ? match->begin : text.size();
      if (cut > at) {
        stage(number + 1, text.substr(at, cut - at));
      }
      if (match) {
        stage(number + 1, text.substr(cut, match->end - cut));
      }
      at = match ? match->end : text.size();
    }
  }

  void piece(std::string_view piece) {
    if (piece.empty()) {
      return;
    }
    owner_.pieces_->append(piece, drop_unknown_, ids_);
    if (ids_.size() >= kBatch) {
      hand_over(piece.data() + piece.size());
    }
  }

  void hand_over(const char* end) {
    sink_(ids_, static_cast<std::size_t>(end - begin_));
    ids_.clear();
  }

  const BpeTokenizer& owner_;
  bool drop_unknown_;
  const TokenSink& sink_;
  const char* begin_;
  std::vector<std::int64_t> ids_;
};

BpeTokenizer::Literals BpeTokenizer::literals(const std::vector<AddedToken>& added,
                                              bool with_special) {
  std::vector<AddedToken> first, second;
  for (const AddedToken& token : added) {
    if (with_special || !token.is_special) {
      (token.is_second ? second : first).push_back(token);
    }
  }
  return {.first = AddedTokens(first), .second = AddedTokens(second)};
}

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : parts_(std::move(parts)),
      single_bytes_(parts_.vocabulary.single_bytes()),
      plain_(literals(parts_.added, false)),
      with_special_(literals(parts_.added, true)),
      pieces_(std::make_unique<Pieces>(*this)) {
  for (const std::string& stage : parts_.stages) {
    stages_.emplace_back(stage);
  }
  for (const AddedToken& token : parts_.added) {
    if (token.is_special) {
      special_tokens_.push_back({.id = token.id, .text = token.text});
    }
  }
  std::sort(special_tokens_.begin(), special_tokens_.end(),
            [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  bos_ = parts_.bos;
  eos_ = parts_.eos;
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, const EncodeOptions& options,
                          const TokenSink& sink) const {
  const std::lock_guard lock(mutex_);
  const Literals& literals = options.special_tokens ? with_special_ : plain_;
  Run run(*this, options.drop_unknown, sink, text);
  run.look_for(literals.first, text, &literals.second);
  run.finish(text);
}

}  // namespace fsdp::tokens::detail
