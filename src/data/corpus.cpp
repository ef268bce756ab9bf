// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/corpus.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "data/files_under.hpp"
#include "data/mapped_file.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/token_file.hpp"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kByteVocabulary = 256;

bool is_token_file(const fs::path& path) { return path.extension() == ".bin"; }

}  // namespace

struct Corpus::Segment {
  Segment(const std::string& file, std::int64_t first) : name(file), mapped(file), begin(first) {}

  std::int64_t token(std::int64_t index) const {
    if (is_text) {
      return mapped.bytes()[static_cast<std::size_t>(index)];
    }
    const unsigned char* at = mapped.bytes().data() + data_offset + token_bytes * index;
    const std::int64_t low = at[0] | at[1] << 8;
    return token_bytes == 2 ? low : low | std::int64_t{at[2]} << 16 | std::int64_t{at[3]} << 24;
  }

  std::string name;
  detail::MappedFile mapped;
  std::int64_t begin;  ///< position in the corpus of its first token
  std::int64_t tokens = 0;
  std::int64_t data_offset = 0;
  std::int64_t token_bytes = 2;
  bool is_text = true;
};

Corpus::Corpus() = default;
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;

Corpus Corpus::open(const std::string& path) {
  Corpus corpus;
  corpus.path_ = path;
  std::error_code error;
  const auto status = fs::status(path, error);
  FSDP_CHECK(fs::status_known(status), ErrorCode::kIo, "'", path,
             "' cannot be read: ", error.message());
  FSDP_CHECK(fs::exists(status), ErrorCode::kNotFound, "'", path, "' does not exist");
  if (!fs::is_directory(status)) {
    corpus.is_text_ = !is_token_file(path);
    corpus.add_file(path);
    return corpus;
  }
  const auto files = detail::files_under(path);
  FSDP_CHECK(!files.empty(), ErrorCode::kInvalidArgument, "directory '", path, "' has no files");
  const auto token_files = std::count_if(files.begin(), files.end(), is_token_file);
  FSDP_CHECK(token_files == 0 || token_files == std::ssize(files), ErrorCode::kInvalidArgument,
             "directory '", path, "' holds ", token_files, " token files (.bin) and ",
             std::ssize(files) - token_files, " others: one kind at a time");
  corpus.is_text_ = token_files == 0;
  for (const std::string& file : files) {
    corpus.add_file(file);
  }
  return corpus;
}

void Corpus::add_file(const std::string& file) {
  auto segment = std::make_unique<Segment>(file, tokens_);
  segment->is_text = is_text_;
  if (is_text_) {
    segment->tokens = std::ssize(segment->mapped.bytes());
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
    for (std::int64_t i = 0; i < here; ++i) {
      dst[static_cast<std::size_t>(done + i)] = source.token(first + i);
    }
    done += here;
  }
}

void Corpus::check_vocabulary(std::int64_t vocab) const {
  if (is_text_ && vocab >= kByteVocabulary) {
    return;
  }
  for (const auto& segment : segments_) {
    for (std::int64_t i = 0; i < segment->tokens; ++i) {
      FSDP_CHECK(segment->token(i) < vocab, ErrorCode::kInvalidArgument, "'", segment->name,
                 "': token ", segment->token(i), " at position ", i,
                 " is outside the vocabulary of ", vocab, "; raise --vocab or use other data");
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
