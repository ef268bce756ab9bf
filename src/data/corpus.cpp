// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/corpus.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/text.hpp"
#include "data/files_under.hpp"
#include "data/open_file.hpp"
#include "data/text_check.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/token_file.hpp"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kByteVocabulary = 256;
constexpr std::int64_t kTokensAtATime = std::int64_t{1} << 16;

bool is_token_file(const fs::path& path) { return path.extension() == ".bin"; }

/// The files that a path means, all of one kind.
struct Files {
  std::vector<std::string> paths;
  bool are_text = true;
};

Files find_files(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  FSDP_CHECK(fs::status_known(status), ErrorCode::kIo, "'", path,
             "' cannot be read: ", error.message());
  FSDP_CHECK(fs::exists(status), ErrorCode::kNotFound, "'", path, "' does not exist");
  if (!fs::is_directory(status)) {
    return {.paths = {path}, .are_text = !is_token_file(path)};
  }
  Files found{.paths = detail::files_under(path)};
  const auto count = std::ssize(found.paths);
  FSDP_CHECK(count > 0, ErrorCode::kInvalidArgument, "directory '", path, "' has no files");
  const auto token_files = std::count_if(found.paths.begin(), found.paths.end(), is_token_file);
  FSDP_CHECK(token_files == 0 || token_files == count, ErrorCode::kInvalidArgument, "directory '",
             path, "' holds ", token_files, " token files (.bin) and ", count - token_files,
             " others: one kind at a time");
  found.are_text = token_files == 0;
  return found;
}

}  // namespace

struct Corpus::Segment {
  Segment(const std::string& path, std::int64_t first) : name(path), file(path), begin(first) {}

  /// Tokens from `first` on.
  void read(std::int64_t first, std::span<std::int64_t> dst) const {
    // The stored bytes go to the end of `dst` and spread from there: a token is written where the
    // stored ones behind it do not lie.
    const auto stored = static_cast<std::size_t>(token_bytes) * dst.size();
    auto* from = reinterpret_cast<unsigned char*>(dst.data()) + dst.size_bytes() - stored;
    file.read(data_offset + token_bytes * first, static_cast<std::int64_t>(stored), from);
    for (std::int64_t& token : dst) {
      std::int64_t value = 0;
      for (std::int64_t i = token_bytes - 1; i >= 0; --i) {
        value = value << 8 | from[i];
      }
      from += token_bytes;
      token = value;
    }
  }

  std::string name;
  detail::OpenFile file;
  std::int64_t begin;  ///< position in the corpus of its first token
  std::int64_t tokens = 0;
  std::int64_t data_offset = 0;
  std::int64_t token_bytes = 1;
};

Corpus::Corpus() = default;
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;

Corpus Corpus::open(const std::string& path) { return open(std::vector<std::string>{path}); }

Corpus Corpus::open(const std::vector<std::string>& paths) {
  Corpus corpus;
  corpus.path_ = base::list_text(paths);
  for (const std::string& path : paths) {
    const Files found = find_files(path);
    FSDP_CHECK(corpus.segments_.empty() || found.are_text == corpus.is_text_,
               ErrorCode::kInvalidArgument, "'", path, "' holds ",
               found.are_text ? "text" : "tokens", " and '", paths.front(), "' ",
               found.are_text ? "tokens" : "text", ": one kind at a time");
    corpus.is_text_ = found.are_text;
    for (const std::string& file : found.paths) {
      corpus.add_file(file);
    }
  }
  return corpus;
}

void check_content(const std::string& path) {
  const Files found = find_files(path);
  if (found.are_text) {
    detail::check_texts(path, found.paths);
    return;
  }
  for (const std::string& file : found.paths) {
    if (format::inspect_token_file(file).kind == format::TokenFileKind::kPlain) {
      detail::check_plain_tokens(file);
    }
  }
}

void Corpus::add_file(const std::string& file) {
  auto segment = std::make_unique<Segment>(file, tokens_);
  if (is_text_) {
    segment->tokens = segment->file.size();
  } else {
    const auto info = format::inspect_token_file(file);
    segment->tokens = info.tokens;
    segment->data_offset = info.data_offset;
    segment->token_bytes = info.token_bytes;
  }
  tokens_ += segment->tokens;
  segments_.push_back(std::move(segment));
}

std::int64_t Corpus::files() const { return std::ssize(segments_); }

void Corpus::read(std::int64_t begin, std::span<std::int64_t> dst) const {
  const auto count = std::ssize(dst);
  FSDP_CHECK(begin >= 0 && count <= tokens_ - begin, ErrorCode::kInvalidArgument, "'", path_,
             "': tokens ", begin, " to ", begin + count, " were asked for, there are ", tokens_);
  if (count == 0) {
    return;
  }
  auto segment = std::upper_bound(segments_.begin(), segments_.end(), begin,
                                  [](std::int64_t position, const auto& candidate) {
                                    return position < candidate->begin;
                                  }) -
                 1;
  for (std::int64_t done = 0; done < count; ++segment) {
    const Segment& source = **segment;
    const std::int64_t first = begin + done - source.begin;
    const std::int64_t here = std::min(source.tokens - first, count - done);
    source.read(first, dst.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(here)));
    done += here;
  }
}

void Corpus::check_vocabulary(std::int64_t vocab) const {
  if (is_text_ && vocab >= kByteVocabulary) {
    return;
  }
  std::vector<std::int64_t> part(kTokensAtATime);
  for (const auto& segment : segments_) {
    for (std::int64_t done = 0; done < segment->tokens; done += kTokensAtATime) {
      const std::int64_t here = std::min(kTokensAtATime, segment->tokens - done);
      part.resize(static_cast<std::size_t>(here));
      segment->read(done, part);
      for (std::int64_t i = 0; i < here; ++i) {
        const std::int64_t token = part[static_cast<std::size_t>(i)];
        FSDP_CHECK(token < vocab, ErrorCode::kInvalidArgument, "'", segment->name, "': token ",
                   token, " at position ", done + i, " is outside the vocabulary of ", vocab,
                   "; raise --vocab or use other data");
      }
    }
  }
}

Split split(const Corpus& corpus, std::int64_t sequence, double fraction) {
  FSDP_CHECK(sequence > 0, ErrorCode::kInvalidArgument, "a sequence of ", sequence,
             " tokens is not possible");
  FSDP_CHECK(fraction > 0 && fraction < 1, ErrorCode::kInvalidArgument, "a validation part of ",
             fraction, " is not between 0 and 1");
  const std::int64_t tokens = corpus.tokens();
  // No sum before this: the sequence may be the largest integer.
  FSDP_CHECK(tokens / 2 > sequence, ErrorCode::kInvalidArgument, "'", corpus.path(), "' has ",
             tokens, " tokens; training and validation take more than ", sequence,
             " each at a sequence of ", sequence);
  const auto wanted =
      static_cast<std::int64_t>(std::llround(static_cast<double>(tokens) * fraction));
  const std::int64_t validation = std::clamp(wanted, sequence + 1, tokens - (sequence + 1));
  return {.train = {0, tokens - validation}, .validation = {tokens - validation, tokens}};
}

}  // namespace fsdp::data
