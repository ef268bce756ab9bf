// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace fsdp::data::detail {

class MappedFile;

/// A path without ".gz" or ".zst": its ending says what the content is.
std::string_view plain_name(std::string_view path);

/// The text of a file, decompressed where its name ends in `.gz` or `.zst`.
class Content {
 public:
  /// @memory the text, if it is compressed
  /// @throws Error kNotFound or kIo; kCorrupt for a stream that is broken or not what its name
  /// says; kUnsupported where this build lacks the library for it
  explicit Content(const std::string& path);
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  std::string_view text() const { return text_; }
  /// As MappedFile::check(): to be called before what was made of the text is used.
  void check() const;

 private:
  std::unique_ptr<MappedFile> file_;
  std::string owned_;
  std::string_view text_;
};

/// What `stored` holds, one stream or several behind one another. CMake chooses gzip.cpp or
/// no_gzip.cpp, zstd.cpp or no_zstd.cpp. @throws Error as Content
std::string from_gzip(const std::string& path, std::string_view stored);
std::string from_zstd(const std::string& path, std::string_view stored);

}  // namespace fsdp::data::detail
