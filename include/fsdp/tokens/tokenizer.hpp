// SPDX-License-Identifier: Apache-2.0
/// Text to tokens and back: what stands between a text file and a model's vocabulary. Reads the
/// files that published models come with; whoever tokenizes data, samples from a model or sizes its
/// vocabulary calls it. Free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokens {

/// A token that stands for no text of its own, such as the end of a document.
struct SpecialToken {
  std::int64_t id = 0;
  std::string text;  ///< "<|endoftext|>"
};

/// What text means to a tokenizer beyond its bytes.
struct EncodeOptions {
  /// Whether "<|endoftext|>" in the text becomes the token of that name. Off, it is text like any
  /// other, so that no document can end itself.
  bool special_tokens = false;
  /// Whether bytes that the vocabulary has no token for are left out, as Hugging Face's tokenizers
  /// does without a word. Off, they are an error. (SmolLM2 lacks 21 bytes: control characters, and
  /// bytes that occur in no UTF-8.)
  bool drop_unknown = false;
};

/// Gets tokens as they come; `text_bytes` counts the bytes of the text that are done.
using TokenSink = std::function<void(std::span<const std::int64_t> ids, std::size_t text_bytes)>;

/// A vocabulary and the rule by which text becomes tokens of it.
///
/// *Invariants*: immutable. Without special tokens, encode() adds nothing at the begin or end: no
/// bos, no eos; sentencepiece's vocabularies get a space in front of a text, which is theirs.
/// *Thread safety*: all members may be called from any thread; calls of encode() wait for one
/// another. *Example*:
///
///     const auto tokenizer = fsdp::tokens::load("models/gpt2");
///     std::vector<std::int64_t> ids = tokenizer->encode("In the beginning");
///     std::string text = tokenizer->decode(ids);
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// What it is, for people: "bytes", "byte-level BPE (gpt2)".
  virtual const std::string& name() const = 0;

  /// All ids are below this. Some may have no token, where the files leave gaps.
  virtual std::int64_t vocab_size() const = 0;

  /// The bytes of one token, of a special one its text; nothing for an id without a token.
  virtual std::optional<std::string_view> token(std::int64_t id) const = 0;

  /// Encodes `text` in one piece and hands over some ten thousand tokens at a time, so that a file
  /// of any size takes constant memory, or as much as the text where the vocabulary's rule changes
  /// it (NFC, marks for spaces). Bytes that are no UTF-8 become
  /// tokens of single bytes, merged where the vocabulary does. @throws Error kInvalidArgument for
  /// a byte that the vocabulary has no token for, unless those are dropped
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      const TokenSink& sink) const = 0;

  /// All tokens of `text`.
  std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The bytes that the tokens stand for, special ones included. The end of a text may be the
  /// middle of a character. Where the vocabulary's rule puts a space in front of a text, one is
  /// left out at its begin, unless the tokens follow others (`continues`).
  /// @throws Error kInvalidArgument naming an id without a token
  std::string decode(std::span<const std::int64_t> ids, bool continues = false) const;

  /// What a text begins and ends with, where the files say so.
  std::optional<std::int64_t> bos() const { return bos_; }
  std::optional<std::int64_t> eos() const { return eos_; }
  /// Whether bos goes in front of each text that a model is given, as the files say (transformers'
  /// add_special_tokens). encode() leaves it out.
  bool begins_texts() const { return begins_texts_; }
  /// In the order of their ids.
  const std::vector<SpecialToken>& special_tokens() const { return special_tokens_; }

  /// Equal for equal vocabularies: a hash (FNV-1a, 64 bits) of all tokens in the order of their
  /// ids. Token files carry it, so that they are not read with another vocabulary.
  std::uint64_t fingerprint() const;

 protected:
  std::optional<std::int64_t> bos_, eos_;
  std::vector<SpecialToken> special_tokens_;
  bool begins_texts_ = false;
  bool begins_with_space_ = false;  ///< encode() puts one in front, decode() leaves one out
};

/// Loads a tokenizer from a file, or from a directory as models are published in: its
/// `tokenizer.json`, else `vocab.json` and `merges.txt` (or `encoder.json` and `vocab.bpe`), else
/// `tokenizer.model` or its only `.tiktoken` file. What a file is decides its content:
///
/// * Hugging Face's `tokenizer.json` with a BPE model of bytes (GPT-2, Llama 3, SmolLM2, Qwen) or
///   of characters with byte fallback (Llama 2, Mistral);
/// * OpenAI's GPT-2 files: vocabulary and merges, each beside the other;
/// * tiktoken's ranks of r50k, cl100k and o200k, recognised by their number;
/// * "bytes", where nothing of that name exists: the 256 bytes.
///
/// @throws Error kNotFound or kIo for a path that cannot be read; kCorrupt for a file that breaks
/// its format; kUnsupported for a sentencepiece model, and naming the part of a `tokenizer.json`
/// that this library would have to ignore
std::shared_ptr<const Tokenizer> load(const std::string& path);

/// The tokens 0 to 255 for the bytes of the text: what training uses without a tokenizer.
std::shared_ptr<const Tokenizer> bytes();

/// The files that load(path) reads, for copying them or for noticing that they changed; none for
/// "bytes". @throws Error as load() for a path that holds no tokenizer
std::vector<std::string> files_of(const std::string& path);

/// Text for a terminal: valid UTF-8 as it is, control characters (other than line feed and
/// tabulator) and broken bytes as "\x1b".
std::string printable(std::string_view text);

}  // namespace fsdp::tokens
