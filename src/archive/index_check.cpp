// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <utility>

#include "archive/checksum.hpp"
#include "archive/index_text.hpp"
#include "format/shape.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

std::int64_t numel(const std::vector<std::int64_t>& shape) {
  return format::detail::byte_count(shape, 1).value_or(0);
}

const Tensor* Index::find(Section section, std::string_view name) const {
  for (const Tensor& tensor : tensors) {
    if (tensor.section == section && tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

namespace detail {

namespace {

/// The tail of an index, with the digits of its sum between the two parts.
constexpr std::string_view kBeforeSum = ",\n \"index_crc32\": \"";
constexpr std::string_view kAfterSum = "\"\n}\n";
constexpr std::size_t kSumDigits = 8;

}  // namespace

std::string with_sum(const std::string& open_object) {
  std::string text = open_object;
  text += kBeforeSum;
  text += crc32_text(crc32(open_object.data(), open_object.size()));
  return text += kAfterSum;
}

void check_sum(const std::string& path, std::string_view text) {
  const std::size_t tail = kBeforeSum.size() + kSumDigits + kAfterSum.size();
  const std::size_t end = text.size() - std::min(tail, text.size());
  FSDP_CHECK(text.size() > tail && text.substr(end, kBeforeSum.size()) == kBeforeSum &&
                 text.ends_with(kAfterSum),
             ErrorCode::kCorrupt, "'", path, "' of ", text.size(),
             " bytes does not end with its own sum: truncated, or not an index");
  const std::string_view stored = text.substr(end + kBeforeSum.size(), kSumDigits);
  const std::string found = crc32_text(crc32(text.data(), end));
  FSDP_CHECK(stored == found, ErrorCode::kCorrupt, "'", path, "': its sum is ", found,
             " but it says ", stored, ": the index was changed or damaged");
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name != kIndexName &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

namespace {

/// One reader's look at an index: each step rests on those before.
class IndexCheck {
 public:
  IndexCheck(const std::string& path, const Index& index) : path_(path), index_(index) {}

  void check_files();
  void check_tensors();
  void check_ranges();
  void check_aliases();

 private:
  struct Filling {
    const StoredFile* file;
    std::int64_t end;
  };

  template <class... Parts>
  [[noreturn]] void corrupt(const Parts&... parts) const {
    fail(ErrorCode::kCorrupt, "'", path_, "': ", parts...);
  }
  void check_size(const Tensor& tensor, const std::string& where) const;

  const std::string& path_;
  const Index& index_;
  std::map<std::string, Filling> filling_;
  std::map<std::pair<std::string, std::int64_t>, const Tensor*> by_place_;
  std::set<std::string> parameters_;
};

void IndexCheck::check_files() {
  for (const StoredFile& file : index_.files) {
    if (!is_plain_name(file.name)) {
      corrupt("a file cannot be named '", file.name, "'");
    }
    if (file.head_bytes > file.bytes) {
      corrupt("file '", file.name, "' of ", file.bytes, " bytes has a head of ", file.head_bytes);
    }
    filling_[file.name] = {&file, file.head_bytes};
  }
}

void IndexCheck::check_size(const Tensor& tensor, const std::string& where) const {
  const std::int64_t itemsize = format::element_bytes(tensor.dtype);
  if (itemsize == 0) {
    corrupt(where, " has the unknown dtype '", tensor.dtype, "'");
  }
  const auto bytes = format::detail::byte_count(tensor.shape, itemsize);
  if (!bytes || *bytes != tensor.bytes) {
    corrupt(where, " of ", tensor.dtype, " ", format::detail::shape_text(tensor.shape),
            bytes ? " takes " + std::to_string(*bytes) + " bytes" : std::string(" overflows"),
            ", but its range has ", tensor.bytes);
  }
}

void IndexCheck::check_tensors() {
  for (const Tensor& tensor : index_.tensors) {
    const std::string where =
        std::string(to_string(tensor.section)) + " tensor '" + tensor.name + "'";
    check_size(tensor, where);
    if (!filling_.contains(tensor.file)) {
      corrupt(where, " lies in '", tensor.file, "', which is not among the files");
    }
    if (tensor.bytes > 0 &&
        !by_place_.emplace(std::pair(tensor.file, tensor.offset), &tensor).second) {
      corrupt(where, " and '", by_place_.at({tensor.file, tensor.offset})->name,
              "' both begin at byte ", tensor.offset, " of '", tensor.file, "'");
    }
    if (tensor.section == Section::kModel) {
      parameters_.insert(tensor.name);
    }
  }
}

void IndexCheck::check_ranges() {
  for (const auto& [place, tensor] : by_place_) {
    Filling& file = filling_.at(place.first);
    if (tensor->offset != file.end) {
      corrupt("tensor '", tensor->name, "' begins at byte ", tensor->offset, " of '", place.first,
              "', expected ", file.end,
              tensor->offset < file.end ? ": ranges overlap" : ": a hole");
    }
    file.end += tensor->bytes;
  }
  for (const auto& [name, file] : filling_) {
    if (file.end != file.file->bytes) {
      corrupt("the tensors of '", name, "' end at byte ", file.end, " but the file has ",
              file.file->bytes);
    }
  }
}

void IndexCheck::check_aliases() {
  for (const auto& [alias, name] : index_.aliases) {
    if (parameters_.contains(alias) || !parameters_.contains(name)) {
      corrupt("'", alias, "' is another name of '", name, "', ",
              parameters_.contains(alias) ? "yet a tensor has it" : "which is not there");
    }
  }
}

}  // namespace

void check_index(const std::string& path, const Index& index) {
  IndexCheck check(path, index);
  check.check_files();
  check.check_tensors();
  check.check_ranges();
  check.check_aliases();
}

}  // namespace detail
}  // namespace fsdp::archive
