// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/reader.hpp"

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "archive/file.hpp"
#include "archive/load_index.hpp"
#include "archive/read_tensor.hpp"
#include "archive/sum_of.hpp"
#include "format/shape.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;
using detail::File;

namespace detail {

namespace {
/// A tensor takes less than a kilobyte of the index, so this is a million of them.
constexpr std::int64_t kMostIndexBytes = std::int64_t{1} << 30;
}  // namespace

Index load_index(const std::string& path) {
  const std::string file = path + "/" + kIndexName;
  std::error_code ignored;
  FSDP_CHECK(fs::exists(file, ignored), ErrorCode::kNotFound, "'", path, "' has no ", kIndexName,
             fs::is_directory(path, ignored) ? ": it is incomplete, or no checkpoint"
                                             : ": there is no such directory");
  return parse_index(file, read_file(file, kMostIndexBytes));
}

void check_file_sizes(const std::string& path, const Index& index) {
  for (const StoredFile& file : index.files) {
    std::error_code error;
    const auto bytes = static_cast<std::int64_t>(fs::file_size(path + "/" + file.name, error));
    FSDP_CHECK(!error, ErrorCode::kCorrupt, "'", path, "/", file.name, "' of ", file.bytes,
               " bytes is missing: ", error.message());
    FSDP_CHECK(bytes == file.bytes, ErrorCode::kCorrupt, "'", path, "/", file.name, "' has ", bytes,
               " bytes, the index says ", file.bytes,
               bytes < file.bytes ? ": truncated?" : ": something was added");
  }
}

}  // namespace detail

namespace {

std::string described(const std::string& dtype, const std::vector<std::int64_t>& shape,
                      std::int64_t offset) {
  return dtype + " " + format::detail::shape_text(shape) + " at byte " + std::to_string(offset);
}

/// The header of a safetensors file, which other readers go by, must say what the index says.
void check_header(const std::string& path, const StoredFile& file, const Index& index) {
  const std::string name = path + "/" + file.name;
  const format::SafetensorsHeader header = format::read_safetensors_header(name);
  FSDP_CHECK(header.head_bytes == file.head_bytes, ErrorCode::kCorrupt, "'", name,
             "' has a header of ", header.head_bytes, " bytes, the index says ", file.head_bytes);
  std::map<std::string, const Tensor*> expected;
  for (const Tensor& tensor : index.tensors) {
    if (tensor.file == file.name) {
      expected[tensor.name] = &tensor;
    }
  }
  for (const format::StoredTensor& stored : header.tensors) {
    const auto found = expected.find(stored.entry.name);
    FSDP_CHECK(found != expected.end(), ErrorCode::kCorrupt, "'", name, "' holds the tensor '",
               stored.entry.name, "', which the index does not have there");
    const Tensor& tensor = *found->second;
    FSDP_CHECK(tensor.dtype == stored.entry.dtype && tensor.shape == stored.entry.shape &&
                   tensor.offset == stored.offset,
               ErrorCode::kCorrupt, "'", name, "': tensor '", tensor.name, "' is ",
               described(stored.entry.dtype, stored.entry.shape, stored.offset),
               ", the index says ", described(tensor.dtype, tensor.shape, tensor.offset));
    expected.erase(found);
  }
  FSDP_CHECK(expected.empty(), ErrorCode::kCorrupt, "'", name, "' lacks the tensor '",
             expected.begin()->first, "', which the index has there");
}

}  // namespace

struct Checkpoint::Files {
  std::map<std::string, File> open;
  /// Places of tensors whose sums were right.
  std::set<std::pair<std::string, std::int64_t>> checked = {};
  std::mutex mutex = {};

  bool is_checked(const Tensor& tensor) {
    const std::lock_guard lock(mutex);
    return checked.contains({tensor.file, tensor.offset});
  }
  void set_checked(const Tensor& tensor) {
    const std::lock_guard lock(mutex);
    checked.emplace(tensor.file, tensor.offset);
  }
};

Checkpoint::Checkpoint(const std::string& path, SumCheck sums)
    : path_(path),
      sums_(sums),
      index_(detail::load_index(path)),
      files_(std::make_unique<Files>()) {
  detail::check_file_sizes(path, index_);
  for (const StoredFile& file : index_.files) {
    if (file.name.ends_with(".safetensors")) {
      check_header(path, file, index_);
    }
    files_->open.emplace(file.name, File(path + "/" + file.name, detail::OpenMode::kRead));
    const std::uint32_t sum =
        detail::summed(file.head_bytes, [&](std::int64_t offset, std::int64_t bytes, void* dst) {
          read_head(file, offset, bytes, dst);
        });
    FSDP_CHECK(sum == file.head_crc32, ErrorCode::kCorrupt, "'", path, "/", file.name,
               file.head_bytes == file.bytes ? "'" : "': its head",
               detail::mismatch(sum, file.head_crc32));
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;

void Checkpoint::read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
                      void* dst) const {
  detail::check_range(tensor, tensor_offset, bytes);
  if (sums_ == SumCheck::kOnFirstRead && bytes > 0 && !files_->is_checked(tensor)) {
    check_sum(tensor);
    files_->set_checked(tensor);
  }
  detail::read_tensor(files_->open.at(tensor.file), tensor, tensor_offset, bytes, dst);
}

void Checkpoint::check_sum(const Tensor& tensor) const {
  const File& file = files_->open.at(tensor.file);
  const std::uint32_t sum =
      detail::summed(tensor.bytes, [&](std::int64_t offset, std::int64_t bytes, void* dst) {
        detail::read_tensor(file, tensor, offset, bytes, dst);
      });
  FSDP_CHECK(sum == tensor.crc32, ErrorCode::kCorrupt, "'", path_, "/", tensor.file, "': tensor '",
             tensor.name, "'", detail::mismatch(sum, tensor.crc32));
}

void Checkpoint::will_read(const Tensor& tensor, std::int64_t tensor_offset,
                           std::int64_t bytes) const {
  files_->open.at(tensor.file).will_read(bytes, tensor.offset + tensor_offset);
}

void Checkpoint::read_head(const StoredFile& file, std::int64_t offset, std::int64_t bytes,
                           void* dst) const {
  FSDP_CHECK(offset >= 0 && bytes >= 0 && bytes <= file.head_bytes - offset,
             ErrorCode::kInvalidArgument, "bytes ", offset, " to ", offset + bytes,
             " of the head of '", file.name, "', which has ", file.head_bytes);
  files_->open.at(file.name).read(dst, bytes, offset);
}

}  // namespace fsdp::archive
