// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/tokenize.hpp"

#include <filesystem>

#include "data/content.hpp"
#include "data/files_under.hpp"
#include "data/text_check.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/token_file.hpp"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

/// The text files that the inputs name, in order.
std::vector<std::string> text_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const auto status = fs::status(input, error);
    FSDP_CHECK(fs::status_known(status), ErrorCode::kIo, "'", input,
               "' cannot be read: ", error.message());
    FSDP_CHECK(fs::exists(status), ErrorCode::kNotFound, "'", input, "' does not exist");
    if (fs::is_directory(status)) {
      const auto below = detail::files_under(input);
      FSDP_CHECK(!below.empty(), ErrorCode::kInvalidArgument, "directory '", input,
                 "' has no files");
      files.insert(files.end(), below.begin(), below.end());
    } else {
      files.push_back(input);
    }
  }
  for (const std::string& file : files) {
    FSDP_CHECK(fs::path(file).extension() != ".bin", ErrorCode::kInvalidArgument, "'", file,
               "' holds tokens already, to judge by its name");
  }
  return files;
}

}  // namespace

TokenizeResult tokenize(const tokens::Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                        const std::string& out, const TokenizeOptions& options) {
  const std::optional<std::int64_t> eos = tokenizer.eos();
  FSDP_CHECK(!options.end_files || eos, ErrorCode::kInvalidArgument, tokenizer.name(),
             " has no token for the end of a text, which was to follow each file");
  const std::vector<std::string> files = text_files(inputs);
  FSDP_CHECK(!files.empty(), ErrorCode::kInvalidArgument, "there is no text to tokenize");
  if (!options.any_bytes) {
    detail::check_texts(inputs.front(), files);
  }
  TokenizeResult result{.files = std::ssize(files)};
  std::error_code unknown;  // a file that cannot be read is told of below
  for (const std::string& file : files) {
    const auto size = fs::file_size(file, unknown);
    result.bytes += unknown ? 0 : static_cast<std::int64_t>(size);
  }
  format::TokenFileWriter writer(out, {.vocab = tokenizer.vocab_size(),
                                       .fingerprint = tokenizer.fingerprint(),
                                       .tokenizer = tokenizer.name()});
  std::int64_t bytes_before = 0;
  for (const std::string& file : files) {
    const detail::Content content(file);
    const std::string_view text = content.text();
    const auto sink = [&](std::span<const std::int64_t> ids, std::size_t text_bytes) {
      content.check();
      writer.append(ids);
      if (options.progress) {
        options.progress({.bytes_done = bytes_before + static_cast<std::int64_t>(text_bytes),
                          .bytes = result.bytes,
                          .tokens = writer.tokens()});
      }
    };
    try {
      tokenizer.encode(text, options.encode, sink);
    } catch (...) {
      content.check();  // the cause of what was wrong with the text, perhaps
      throw;
    }
    if (options.end_files && eos) {
      writer.append({&*eos, 1});
    }
    bytes_before += static_cast<std::int64_t>(text.size());
  }
  writer.finish();
  result.tokens = writer.tokens();
  result.token_bytes = writer.token_bytes();
  return result;
}

}  // namespace fsdp::data
