// SPDX-License-Identifier: Apache-2.0
#include "data/content.hpp"

#include "data/mapped_file.hpp"

namespace fsdp::data::detail {
namespace {

constexpr std::string_view kGzip = ".gz", kZstd = ".zst";

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

std::string_view plain_name(std::string_view path) {
  for (const std::string_view ending : {kGzip, kZstd}) {
    if (path.ends_with(ending)) {
      path.remove_suffix(ending.size());
      break;
    }
  }
  return path;
}

Content::Content(const std::string& path) : file_(std::make_unique<MappedFile>(path)) {
  const bool is_gzip = path.ends_with(kGzip), is_zstd = path.ends_with(kZstd);
  text_ = as_text(*file_);
  if (is_gzip || is_zstd) {
    owned_ = is_gzip ? from_gzip(path, text_) : from_zstd(path, text_);
    check();
    text_ = owned_;
    file_.reset();
  }
}

Content::~Content() = default;

void Content::check() const {
  if (file_ != nullptr) {
    file_->check();
  }
}

}  // namespace fsdp::data::detail
