// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/descriptor.hpp"
#include "base/unfinished.hpp"
#include "format/token_header.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/token_file.hpp"

namespace fsdp::format {
namespace {

using detail::TokenHeader;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

const detail::TokenKind& kind_for(std::int64_t vocab) {
  return detail::kTokenKinds[vocab <= 65536 ? 0 : 1];
}

}  // namespace

struct TokenFileWriter::File {
  base::Unfinished draft;
  base::Descriptor descriptor;

  explicit File(const std::string& path)
      : draft(path, base::PathKind::kFile),
        descriptor(::open(draft.path().c_str(), O_WRONLY | O_CLOEXEC)) {
    if (descriptor.get() < 0) {
      fail_now();
    }
  }
  [[noreturn]] void fail_now() const {
    fail(ErrorCode::kIo, "'", draft.path(), "' cannot be written: ", std::strerror(errno));
  }
};

TokenFileWriter::TokenFileWriter(const std::string& path, TokenOrigin origin)
    : path_(path), origin_(std::move(origin)) {
  FSDP_CHECK(origin_.vocab >= 1 && origin_.vocab <= kMostTokens, ErrorCode::kInvalidArgument, "'",
             path, "': a vocabulary of ", origin_.vocab, " tokens; 1 to ", kMostTokens,
             " are possible");
  file_ = std::make_unique<File>(path);
  buffer_ = std::string(static_cast<std::size_t>(detail::kTokenHeaderBytes), '\0');
}

TokenFileWriter::~TokenFileWriter() = default;

std::int64_t TokenFileWriter::token_bytes() const { return kind_for(origin_.vocab).token_bytes; }

void TokenFileWriter::append(std::span<const std::int64_t> ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  FSDP_CHECK(count <= kMostTokens - tokens_, ErrorCode::kUnsupported, "'", path_, "': more than ",
             kMostTokens, " tokens do not fit into one file; write several into a directory");
  const std::int64_t bytes = token_bytes();
  for (const std::int64_t id : ids) {
    FSDP_CHECK(id >= 0 && id < origin_.vocab, ErrorCode::kInvalidArgument, "'", path_, "': token ",
               id, " is outside the vocabulary of ", origin_.vocab);
    for (std::int64_t i = 0; i < bytes; ++i) {
      buffer_.push_back(static_cast<char>(id >> (8 * i) & 0xff));
    }
  }
  tokens_ += count;
  if (buffer_.size() >= kBufferBytes) {
    write(buffer_);
    buffer_.clear();
  }
}

void TokenFileWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_->descriptor.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      file_->fail_now();
    }
    bytes.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
}

void TokenFileWriter::finish() {
  write(buffer_);
  buffer_.clear();
  const std::string header = detail::write_token_header({.kind = &kind_for(origin_.vocab),
                                                         .version = 0,
                                                         .tokens = tokens_,
                                                         .vocab = origin_.vocab,
                                                         .fingerprint = origin_.fingerprint,
                                                         .tokenizer = origin_.tokenizer});
  const auto size = static_cast<ssize_t>(header.size());
  const int descriptor = file_->descriptor.get();
  if (::pwrite(descriptor, header.data(), header.size(), 0) != size || ::fsync(descriptor) != 0) {
    file_->fail_now();
  }
  file_->draft.finish();
}

}  // namespace fsdp::format
