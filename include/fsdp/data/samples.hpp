// SPDX-License-Identifier: Apache-2.0
/// Documents to learn from one by one, such as conversations of which only the answers count: made
/// once from JSON lines, kept in a file, and packed into rows of a batch. Free of LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/data/corpus.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::data {

/// Whether a file of that name is read record by record: `.jsonl` or `.ndjson`, also with `.gz` or
/// `.zst` behind.
bool has_records(const std::string& path);

/// What came of the records of files.
struct SampleCounts {
  std::int64_t records = 0;
  std::int64_t documents = 0;  ///< more than records, where conversations had to be split
  std::int64_t tokens = 0;
  std::int64_t learned = 0;  ///< of these, tokens that are learnt
  std::int64_t answers = 0;  ///< of all conversations, and completions
  std::int64_t split = 0;    ///< conversations whose template changes what stood before
  std::int64_t shifted = 0;  ///< answers whose first token begins in what stands before them
};

/// Turns the records of `inputs` (JSON lines) into the sample file `out`, which appears complete or
/// not at all. A record has one of these:
///
/// * `text`: a document, of which all is learnt; eos follows it;
/// * `prompt` and `completion`, two texts: the completion is learnt, and eos, which follows it;
/// * `prompt` and `completion`, two lists of messages: the same by the model's chat template;
/// * `messages`: a conversation; each of its answers (role "assistant") is learnt, with what the
///   template puts behind it.
///
/// As transformers and TRL do, names of special tokens in records are read as these tokens, and
/// bos goes in front of texts where the tokenizer says so. An answer is what rendering adds to what
/// stood before it; where a template changes what stood before (leaves out older thoughts), each
/// answer becomes a document of its own. `model` is the directory with the chat template; it is
/// needed for messages only.
/// @memory a file's text, where it is compressed; else constant
/// @throws Error kInvalidArgument naming file and line of a record that is none of these; as
/// ChatTemplate, tokens::Tokenizer::encode() and Corpus::open()
SampleCounts make_samples(const tokens::Tokenizer& tokenizer, const std::string& model,
                          const std::vector<std::string>& inputs, const std::string& out,
                          const std::function<void(const TokenizeProgress&)>& progress = {});

/// The sample file for such inputs, from the same cache as cached_tokens(), see there: made anew
/// when a file of the data, the tokenizer or the chat template is another.
/// `tokenizer_path` is "bytes" or as for tokens::load(). @throws as both
std::string cached_samples(const std::vector<std::string>& inputs,
                           const std::string& tokenizer_path, const std::string& directory,
                           const std::function<void(const TokenizeProgress&)>& progress = {});

/// A file that make_samples() wrote.
///
/// *Thread safety*: reads may run side by side.
class SampleFile {
 public:
  /// @throws Error kNotFound or kIo; kCorrupt for another file or one that is not whole
  explicit SampleFile(const std::string& path);
  ~SampleFile();
  SampleFile(SampleFile&&) noexcept;
  SampleFile& operator=(SampleFile&&) noexcept;

  /// What a document is, without its tokens.
  struct Document {
    std::int64_t begin = 0;  ///< its first token among all
    std::int64_t tokens = 0;
    std::int64_t first_learned = 0;  ///< the first token that is learnt; `tokens` for none
    bool is_text = false;            ///< all of it is learnt, so it may be cut into pieces
  };
  std::int64_t documents() const;
  Document document(std::int64_t number) const;
  const SampleCounts& counts() const;
  /// Of the vocabulary, as Tokenizer has them.
  std::int64_t vocab() const;
  std::uint64_t fingerprint() const;

  /// Tokens of a document from `first` on, and 1 for each that is learnt.
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> tokens,
            std::span<unsigned char> learned) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// What becomes of a conversation that is longer than a row.
enum class TooLong {
  kCut,   ///< its end is left out, and all of it when no answer is left
  kDrop,  ///< it is left out
};

/// Documents side by side in rows of `sequence` tokens, longest first, each into the row with the
/// least room that holds it. A document of n tokens takes n - 1 places: each predicts the next.
/// Texts that are longer than a row become several pieces, which overlap by the token that is
/// predicted last.
///
/// *Thread safety*: immutable.
class Packing {
 public:
  /// Tokens `first` to `first + places` of a document: places + 1 of them.
  struct Piece {
    std::int64_t document = 0, first = 0, places = 0;
  };

  /// @throws Error kInvalidArgument when nothing is left to learn
  Packing(const SampleFile& file, Range documents, std::int64_t sequence, TooLong policy);

  std::int64_t rows() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  std::int64_t sequence() const { return sequence_; }
  std::span<const Piece> row(std::int64_t number) const;
  /// Documents of which something, or everything, is left out as too long; without an answer that
  /// could be learnt.
  std::int64_t cut() const { return cut_; }
  std::int64_t dropped() const { return dropped_; }
  std::int64_t without_answer() const { return without_answer_; }
  /// Places that documents take, of rows() x sequence().
  std::int64_t places() const { return places_; }

 private:
  std::int64_t sequence_;
  std::int64_t cut_ = 0, dropped_ = 0, without_answer_ = 0, places_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> begins_;  ///< of each row among the pieces, and their end
};

}  // namespace fsdp::data
