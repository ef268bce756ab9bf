// SPDX-License-Identifier: Apache-2.0
/// The reader.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <tuple>

#include "base/regular_file.hpp"
#include "format/checked_json.hpp"
#include "format/shape.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::format {
namespace {

using detail::as_size;
using detail::byte_count;
using detail::parse_object;
using detail::shape_text;
using nlohmann::ordered_json;

constexpr std::int64_t kLengthBytes = 8;
/// The limit of the reference implementation (safetensors, MAX_HEADER_SIZE).
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

StoredTensor parse_tensor(const std::string& path, const std::string& name,
                          const ordered_json& value, std::int64_t data_begin) {
  const std::string where = "tensor '" + name + "'";
  FSDP_CHECK(value.is_object() && value.contains("dtype") && value.contains("shape") &&
                 value.contains("data_offsets") && value["dtype"].is_string() &&
                 value["shape"].is_array() && value["data_offsets"].is_array() &&
                 value["data_offsets"].size() == 2,
             ErrorCode::kCorrupt, "'", path, "': ", where,
             " is not described by dtype, shape and two data_offsets");
  StoredTensor tensor;
  tensor.entry.name = name;
  tensor.entry.dtype = value["dtype"].get<std::string>();
  const std::int64_t itemsize = element_bytes(tensor.entry.dtype);
  FSDP_CHECK(itemsize > 0, ErrorCode::kUnsupported, "'", path, "': ", where,
             " has the unknown dtype '", tensor.entry.dtype, "'");
  for (const auto& size : value["shape"]) {
    tensor.entry.shape.push_back(as_size(size, path, where + ": a size"));
  }
  const std::int64_t begin = as_size(value["data_offsets"][0], path, where + ": its begin");
  const std::int64_t end = as_size(value["data_offsets"][1], path, where + ": its end");
  const auto bytes = byte_count(tensor.entry.shape, itemsize);
  FSDP_CHECK(bytes.has_value() && end >= begin && *bytes == end - begin, ErrorCode::kCorrupt, "'",
             path, "': ", where, " of ", tensor.entry.dtype, " ", shape_text(tensor.entry.shape),
             bytes ? " takes " + std::to_string(*bytes) + " bytes" : " overflows",
             ", but its data_offsets are ", begin, " to ", end);
  FSDP_CHECK(begin <= std::numeric_limits<std::int64_t>::max() - data_begin - *bytes,
             ErrorCode::kCorrupt, "'", path, "': ", where, " begins at ", begin,
             ", beyond any file");
  tensor.offset = data_begin + begin;
  tensor.bytes = *bytes;
  return tensor;
}

void check_coverage(const std::string& path, const SafetensorsHeader& header,
                    std::int64_t data_begin) {
  std::int64_t end = data_begin;
  const std::string* previous = nullptr;
  for (const StoredTensor& tensor : header.tensors) {
    FSDP_CHECK(tensor.offset >= end, ErrorCode::kCorrupt, "'", path, "': tensors '",
               previous ? *previous : "", "' and '", tensor.entry.name,
               "' overlap: the first ends at ", end, ", the second begins at ", tensor.offset);
    FSDP_CHECK(tensor.offset == end, ErrorCode::kCorrupt, "'", path, "': ", tensor.offset - end,
               " bytes before tensor '", tensor.entry.name, "' belong to no tensor");
    end = tensor.offset + tensor.bytes;
    previous = &tensor.entry.name;
  }
  FSDP_CHECK(header.file_bytes >= end, ErrorCode::kCorrupt, "'", path,
             "': the tensors end at byte ", end, " but the file has ", header.file_bytes,
             " bytes: truncated?");
  FSDP_CHECK(header.file_bytes <= end, ErrorCode::kCorrupt, "'", path, "': the file has ",
             header.file_bytes, " bytes, ", header.file_bytes - end,
             " more than its header describes");
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           std::int64_t file_bytes) {
  SafetensorsHeader header;
  header.file_bytes = file_bytes;
  const auto data_begin = kLengthBytes + static_cast<std::int64_t>(json.size());
  header.head_bytes = data_begin;
  const ordered_json parsed = parse_object(path, json, kLengthBytes);
  for (const auto& [name, value] : parsed.items()) {
    if (name != kMetadataKey) {
      header.tensors.push_back(parse_tensor(path, name, value, data_begin));
      continue;
    }
    FSDP_CHECK(value.is_object(), ErrorCode::kCorrupt, "'", path,
               "': __metadata__ is not an object");
    for (const auto& [key, text_value] : value.items()) {
      FSDP_CHECK(text_value.is_string(), ErrorCode::kCorrupt, "'", path, "': __metadata__ '", key,
                 "' is not a string");
      header.metadata[key] = text_value.get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::tie(a.offset, a.bytes, a.entry.name) <
                     std::tie(b.offset, b.bytes, b.entry.name);
            });
  check_coverage(path, header, data_begin);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::string& path) {
  base::need_regular(path);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  FSDP_CHECK(file, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  const auto file_bytes = static_cast<std::int64_t>(file.tellg());
  FSDP_CHECK(file_bytes >= kLengthBytes, ErrorCode::kCorrupt, "'", path, "' has ", file_bytes,
             " bytes, too few for a safetensors file");
  file.seekg(0);
  unsigned char prefix[kLengthBytes] = {};
  file.read(reinterpret_cast<char*>(prefix), kLengthBytes);
  FSDP_CHECK(file.good(), ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));
  std::uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) {
    length = (length << 8) | prefix[i];
  }
  FSDP_CHECK(length <= static_cast<std::uint64_t>(file_bytes - kLengthBytes), ErrorCode::kCorrupt,
             "'", path, "' claims a header of ", length, " bytes but has ", file_bytes,
             " bytes in all: truncated, or not a safetensors file");
  FSDP_CHECK(length <= kMaxHeaderBytes, ErrorCode::kCorrupt, "'", path, "' claims a header of ",
             length, " bytes; the format allows ", kMaxHeaderBytes);
  std::string json(static_cast<std::size_t>(length), '\0');
  file.read(json.data(), static_cast<std::streamsize>(length));
  FSDP_CHECK(file.good(), ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));
  return parse_safetensors_header(path, json, file_bytes);
}

}  // namespace fsdp::format
