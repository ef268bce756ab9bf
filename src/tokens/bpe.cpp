// SPDX-License-Identifier: Apache-2.0
#include "tokens/bpe.hpp"

#include <algorithm>
#include <iterator>
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
    const bool is_whole = owner_.parts_.characters ? spell_characters(piece, drop_unknown)
                                                   : spell_bytes(piece, drop_unknown);
    merger_.run(owner_.parts_.merges, symbols_);
    return is_whole;
  }

  /// A symbol for each byte. Returns whether all had one.
  bool spell_bytes(std::string_view piece, bool drop_unknown) {
    for (const char character : piece) {
      const Id id = owner_.single_bytes_[static_cast<unsigned char>(character)];
      if (id >= 0) {
        symbols_.push_back(id);
      } else {
        need_dropping(piece, character, drop_unknown);
      }
    }
    return symbols_.size() == piece.size();
  }

  /// A symbol for each character; for one without a token those of its bytes, or the unknown one.
  bool spell_characters(std::string_view piece, bool drop_unknown) {
    const CharacterParts& own = *owner_.parts_.characters;
    bool is_whole = true, was_unknown = false;
    while (!piece.empty()) {
      const std::string_view character =
          piece.substr(0, std::max<std::size_t>(character_bytes(piece), 1));
      const auto id = owner_.parts_.vocabulary.find(character);
      const auto byte_of = [&](char byte) { return own.bytes[static_cast<unsigned char>(byte)]; };
      bool is_unknown = false;
      if (id && character_bytes(piece) > 0) {
        symbols_.push_back(*id);
      } else if (std::ranges::none_of(character, [&](char byte) { return byte_of(byte) < 0; })) {
        std::ranges::transform(character, std::back_inserter(symbols_), byte_of);
      } else if (own.unknown) {
        is_unknown = true;
        if (!was_unknown || !own.fuses_unknown) {
          symbols_.push_back(*own.unknown);
        }
      } else {
        need_dropping(piece, character.front(), drop_unknown);
        is_whole = false;
      }
      was_unknown = is_unknown;
      piece.remove_prefix(character.size());
    }
    return is_whole;
  }

  /// @throws Error unless unknown bytes are dropped
  void need_dropping(std::string_view piece, char byte, bool drop_unknown) const {
    FSDP_CHECK(drop_unknown, ErrorCode::kInvalidArgument, owner_.name(), ": '",
               printable(piece.substr(0, kLongestKnownPiece)),
               "' cannot be encoded, for the vocabulary has no token for byte ",
               static_cast<int>(static_cast<unsigned char>(byte)),
               "; fsdp tokenize --drop-unknown leaves such bytes out");
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

  void look_for(const Literals& literals, std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const AddedTokens::Found found = literals.first.next(text, at);
      plain(literals.second, text.substr(at, found.begin - at));
      if (found.id >= 0) {
        ids_.push_back(found.id);
      }
      at = found.end;
    }
  }

  void finish(std::string_view text) { hand_over(text.size()); }

 private:
  void plain(const AddedTokens& second, std::string_view text) {
    while (!text.empty()) {
      const std::size_t valid = valid_bytes(text);
      normal(second, text.substr(0, valid));
      text.remove_prefix(valid);
      std::size_t broken = 0;
      while (broken < text.size() && character_bytes(text.substr(broken)) == 0) {
        ++broken;
      }
      source_ = text;
      stages_text_ = text.substr(0, broken);
      piece(stages_text_);
      text.remove_prefix(broken);
    }
  }

  /// A run of valid UTF-8, which ends where the run or an added token does.
  void normal(const AddedTokens& second, std::string_view text) {
    if (text.empty()) {
      return;
    }
    const std::optional<std::string> changed = owner_.parts_.normalizer.changed(text);
    source_ = text;
    stages_text_ = changed ? std::string_view(*changed) : text;
    const std::string_view whole = stages_text_;
    const bool is_begin = text.data() == begin_;
    for (std::size_t at = 0; at < whole.size();) {
      const AddedTokens::Found found = second.next(whole, at);
      marked(whole.substr(at, found.begin - at), is_begin && at == 0);
      if (found.id >= 0) {
        ids_.push_back(found.id);
      }
      at = found.end;
    }
  }

  /// Text whose words are to be marked, if tokens are so; `is_begin` of the whole text.
  void marked(std::string_view text, bool is_begin) {
    const auto& characters = owner_.parts_.characters;
    if (text.empty() || !characters || !characters->metaspace) {
      return stage(0, text);
    }
    const Metaspace& metaspace = *characters->metaspace;
    const NormalStep spaces{
        .kind = NormalStep::Kind::kReplace, .from = " ", .to = std::string(kSpaceMark)};
    std::string made = Normalizer({spaces}).changed(text).value_or(std::string(text));
    const bool is_prefixed = metaspace.prepend == Metaspace::Prepend::kAlways ||
                             (metaspace.prepend == Metaspace::Prepend::kFirst && is_begin);
    if (is_prefixed && !made.starts_with(kSpaceMark)) {
      made.insert(0, kSpaceMark);
    }
    stages_text_ = made;
    for (std::string_view rest = made; !rest.empty();) {
      const std::size_t next =
          metaspace.splits ? rest.find(kSpaceMark, kSpaceMark.size()) : std::string_view::npos;
      stage(0, rest.substr(0, next));
      rest.remove_prefix(std::min(next, rest.size()));
    }
  }

  void stage(std::size_t number, std::string_view text) {
    if (number == owner_.stages_.size()) {
      return cut(text);
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

  /// See NOTE [Where a text may be cut].
  void cut(std::string_view text) {
    while (owner_.cuts_ && !text.empty()) {
      const std::size_t first = owner_.cuts_->first(text);
      piece(text.substr(0, first));
      text.remove_prefix(first);
    }
    piece(text);
  }

  void piece(std::string_view piece) {
    if (piece.empty()) {
      return;
    }
    owner_.pieces_->append(piece, drop_unknown_, ids_);
    if (ids_.size() >= kBatch) {
      hand_over(source_position(piece.data() + piece.size()));
    }
  }

  /// Of the source, the bytes that became normalized text up to `end`; in proportion, where the
  /// normalizer changed it.
  std::size_t source_position(const char* end) const {
    const double share =
        static_cast<double>(end - stages_text_.data()) / static_cast<double>(stages_text_.size());
    const auto done = static_cast<std::size_t>(share * static_cast<double>(source_.size()));
    return static_cast<std::size_t>(source_.data() - begin_) + std::min(done, source_.size());
  }

  void hand_over(std::size_t text_bytes) {
    sink_(ids_, text_bytes);
    ids_.clear();
  }

  const BpeTokenizer& owner_;
  bool drop_unknown_;
  const TokenSink& sink_;
  const char* begin_;
  std::string_view source_;       ///< the part of the text that is being encoded
  std::string_view stages_text_;  ///< what became of it
  std::vector<std::int64_t> ids_;
};

BpeTokenizer::Literals BpeTokenizer::literals(const BpeParts& parts, bool with_special) {
  std::vector<AddedToken> first, second;
  for (AddedToken token : parts.added) {
    if (with_special || !token.is_special) {
      if (token.is_second) {
        // It is looked for in normalized text.
        token.text = parts.normalizer.changed(token.text).value_or(token.text);
      }
      (token.is_second ? second : first).push_back(token);
    }
  }
  return {.first = AddedTokens(first), .second = AddedTokens(second)};
}

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : parts_(std::move(parts)),
      single_bytes_(parts_.vocabulary.single_bytes()),
      plain_(literals(parts_, false)),
      with_special_(literals(parts_, true)),
      pieces_(std::make_unique<Pieces>(*this)) {
  if (parts_.characters) {
    cuts_.emplace(parts_);
    begins_with_space_ = parts_.strips_space;
  }
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
  begins_texts_ = bos_ && !parts_.begin.empty() && token(*bos_) == parts_.begin;
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, const EncodeOptions& options,
                          const TokenSink& sink) const {
  const std::lock_guard lock(mutex_);
  const Literals& literals = options.special_tokens ? with_special_ : plain_;
  Run run(*this, options.drop_unknown, sink, text);
  run.look_for(literals, text);
  run.finish(text);
}

}  // namespace fsdp::tokens::detail
