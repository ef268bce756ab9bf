// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/samples.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/unfinished.hpp"
#include "data/content.hpp"
#include "data/open_file.hpp"
#include "data/records.hpp"
#include "data/sample_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data {

using detail::kLearned;
using detail::Sample;
using detail::SampleEntry;
using detail::SampleHeader;

namespace {

constexpr std::int64_t kHeaderBytes = sizeof(SampleHeader);
constexpr std::int64_t kEntryBytes = sizeof(SampleEntry);

/// Writes documents as they come, then their entries, then the header.
class Writer {
 public:
  explicit Writer(const std::string& path)
      : draft_(path, base::PathKind::kFile),
        file_(draft_.path(), std::ios::binary | std::ios::trunc) {
    const SampleHeader none;
    put(&none, sizeof none);
  }

  void append(const Sample& sample) {
    const auto first = std::find(sample.learned.begin(), sample.learned.end(), true);
    entries_.push_back({.begin = tokens_,
                        .tokens = std::ssize(sample.tokens),
                        .first_learned = first - sample.learned.begin(),
                        .is_text = sample.is_text ? 1 : 0});
    stored_.clear();
    for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
      stored_.push_back(static_cast<std::uint32_t>(sample.tokens[i]) |
                        (sample.learned[i] ? kLearned : 0));
    }
    put(stored_.data(), stored_.size() * sizeof(std::uint32_t));
    tokens_ += std::ssize(sample.tokens);
  }

  void finish(const SampleHeader& header) {
    if (tokens_ % 2 != 0) {
      const std::uint32_t padding = 0;
      put(&padding, sizeof padding);
    }
    put(entries_.data(), entries_.size() * sizeof(SampleEntry));
    file_.seekp(0);
    put(&header, sizeof header);
    file_.close();
    check();
    draft_.finish();
  }

 private:
  void put(const void* bytes, std::size_t count) {
    file_.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
    check();
  }
  void check() const {
    FSDP_CHECK(file_, ErrorCode::kIo, "'", draft_.path(),
               "' cannot be written: ", std::strerror(errno));
  }

  base::Unfinished draft_;
  std::ofstream file_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint32_t> stored_;
  std::vector<SampleEntry> entries_;
};

}  // namespace

bool has_records(const std::string& path) {
  const std::string_view name = detail::plain_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

SampleCounts make_samples(const tokens::Tokenizer& tokenizer, const std::string& model,
                          const std::vector<std::string>& inputs, const std::string& out,
                          const std::function<void(const TokenizeProgress&)>& progress) {
  detail::SampleMaker maker(tokenizer, model);
  Writer writer(out);
  TokenizeProgress now;
  for (const std::string& input : inputs) {
    std::error_code unknown;
    const auto size = std::filesystem::file_size(input, unknown);
    now.bytes += unknown ? 0 : static_cast<std::int64_t>(size);
  }
  for (const std::string& input : inputs) {
    const detail::Content content(input);
    std::string_view rest = content.text();
    rest.remove_prefix(rest.starts_with("\xef\xbb\xbf") ? 3 : 0);
    for (std::int64_t line = 1; !rest.empty(); ++line) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string where = "'" + input + "' line " + std::to_string(line);
      for (const Sample& sample : maker.of_line(rest.substr(0, end), where)) {
        writer.append(sample);
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
      now.bytes_done += static_cast<std::int64_t>(end + 1);
      now.tokens = maker.counts().tokens;
      if (progress && line % 64 == 0) {
        progress(now);
      }
    }
    content.check();
  }
  const SampleCounts& counts = maker.counts();
  FSDP_CHECK(counts.documents > 0, ErrorCode::kInvalidArgument, "'",
             inputs.empty() ? "" : inputs.front(), "' has no record");
  writer.finish(
      {.vocab = tokenizer.vocab_size(), .fingerprint = tokenizer.fingerprint(), .counts = counts});
  return counts;
}

struct SampleFile::Parts {
  explicit Parts(const std::string& path) : file(path) {
    FSDP_CHECK(file.size() >= kHeaderBytes, ErrorCode::kCorrupt, "'", path, "' has ", file.size(),
               " bytes: no sample file");
    file.read(0, kHeaderBytes, &header);
    FSDP_CHECK(header.magic == detail::kSampleMagic, ErrorCode::kCorrupt, "'", path,
               "' is no sample file");
    const SampleCounts& counts = header.counts;
    constexpr std::int64_t kMost = std::int64_t{1} << 50;
    const bool is_possible = counts.tokens >= 0 && counts.tokens < kMost && counts.documents >= 0 &&
                             counts.documents < kMost / kEntryBytes;
    const std::int64_t padded = is_possible ? counts.tokens + counts.tokens % 2 : 0;
    const std::int64_t expected = kHeaderBytes + padded * 4 + counts.documents * kEntryBytes;
    FSDP_CHECK(is_possible && file.size() == expected, ErrorCode::kCorrupt, "'", path, "' has ",
               file.size(), " bytes, its header tells of ", expected);
    entries.resize(static_cast<std::size_t>(counts.documents));
    file.read(kHeaderBytes + padded * 4, counts.documents * kEntryBytes, entries.data());
    std::int64_t begin = 0;
    for (const SampleEntry& entry : entries) {
      FSDP_CHECK(entry.begin == begin && entry.tokens >= 0 &&
                     entry.tokens <= counts.tokens - begin && entry.first_learned >= 0 &&
                     entry.first_learned <= entry.tokens,
                 ErrorCode::kCorrupt, "'", path, "': its documents do not follow one another");
      begin += entry.tokens;
    }
  }

  detail::OpenFile file;
  SampleHeader header;
  std::vector<SampleEntry> entries;
};

SampleFile::SampleFile(const std::string& path) : parts_(std::make_unique<Parts>(path)) {}
SampleFile::~SampleFile() = default;
SampleFile::SampleFile(SampleFile&&) noexcept = default;
SampleFile& SampleFile::operator=(SampleFile&&) noexcept = default;

std::int64_t SampleFile::documents() const { return std::ssize(parts_->entries); }

SampleFile::Document SampleFile::document(std::int64_t number) const {
  const SampleEntry& entry = parts_->entries.at(static_cast<std::size_t>(number));
  return {.begin = entry.begin,
          .tokens = entry.tokens,
          .first_learned = entry.first_learned,
          .is_text = entry.is_text != 0};
}

const SampleCounts& SampleFile::counts() const { return parts_->header.counts; }
std::int64_t SampleFile::vocab() const { return parts_->header.vocab; }
std::uint64_t SampleFile::fingerprint() const { return parts_->header.fingerprint; }

void SampleFile::read(std::int64_t document, std::int64_t first, std::span<std::int64_t> tokens,
                      std::span<unsigned char> learned) const {
  const Document known = this->document(document);
  const auto count = std::ssize(tokens);
  FSDP_CHECK(first >= 0 && count <= known.tokens - first && std::ssize(learned) == count,
             ErrorCode::kInvalidArgument, "tokens ", first, " to ", first + count,
             " of a document that has ", known.tokens);
  std::vector<std::uint32_t> stored(tokens.size());
  parts_->file.read(kHeaderBytes + 4 * (known.begin + first), 4 * count, stored.data());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    tokens[i] = stored[i] & ~kLearned;
    learned[i] = (stored[i] & kLearned) != 0 ? 1 : 0;
  }
}

}  // namespace fsdp::data
