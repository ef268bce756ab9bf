// SPDX-License-Identifier: Apache-2.0
/// Tokens to train on, mapped from files and never copied as a whole: text as bytes, or token
/// files. The trainer splits them once and reads windows of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp::data {

/// A half-open range of token positions.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// One sequence of tokens from one file or from all files of a directory, in the order of their
/// paths.
///
/// *Invariants*: immutable; the files must not shrink while it lives. *Thread safety*: all members
/// may be called from any thread. *Example*:
///
///     auto corpus = Corpus::open("data/kjv.txt");
///     std::vector<std::int64_t> tokens(128);
///     corpus.read(0, tokens);
class Corpus {
 public:
  /// Opens a text file, a `.bin` token file, or a directory of either kind (walked down, hidden
  /// names left out).
  /// @throws Error kNotFound or kIo with the path; kInvalidArgument for a directory without files
  /// or with both kinds; kCorrupt for a broken token file
  static Corpus open(const std::string& path);
  /// The same of several paths, one behind the other, which must be of one kind.
  static Corpus open(const std::vector<std::string>& paths);

  ~Corpus();
  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;

  const std::string& path() const { return path_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t files() const;
  /// Whether tokens are the bytes of a text.
  bool is_text() const { return is_text_; }

  /// Copies the tokens from `begin` on into `dst`.
  /// @throws Error kInvalidArgument when they do not all exist
  void read(std::int64_t begin, std::span<std::int64_t> dst) const;

  /// Looks at every token. @throws Error kInvalidArgument naming the first that is `vocab` or more,
  /// its position and its file
  void check_vocabulary(std::int64_t vocab) const;

 private:
  struct Segment;
  Corpus();
  void add_file(const std::string& file);

  std::string path_;
  bool is_text_ = true;
  std::int64_t tokens_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;
};

/// Looks at what a user named as data, before it is trained on: everything can be read as bytes, or
/// as numbers of 16 bits. Refuses known formats by name and first bytes (compressed files, images,
/// tables, pages, JSON and the like), text of which more than a thousandth is not UTF-8, and token
/// files without a header that are such a format or text. Of files above 64 MiB, 64 MiB are looked
/// at. @throws Error kInvalidArgument naming file, kind and the command that makes text of it; what
/// Corpus::open() throws
void check_content(const std::string& path);

/// The part to learn from and the part to judge by.
struct Split {
  Range train;
  Range validation;
};

/// Puts the last `fraction` of the tokens aside for validation, at least one sequence of
/// `sequence` tokens and its target; so must remain for training.
/// @throws Error kInvalidArgument when the corpus is too short, with both numbers
Split split(const Corpus& corpus, std::int64_t sequence, double fraction = 0.05);

}  // namespace fsdp::data
