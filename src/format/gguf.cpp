// SPDX-License-Identifier: Apache-2.0
/// The reader of GGUF headers. Layout: ggml's docs/gguf.md.
#include "format/gguf.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>

#include "base/regular_file.hpp"
#include "format/shape.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::int64_t kMostDimensions = 4;  // ggml's own limit
constexpr std::int64_t kDefaultAlignment = 32;
/// The largest vocabularies in use take 10 MB and half a million entries.
constexpr std::int64_t kMostHeaderBytes = std::int64_t{1} << 26;
constexpr std::int64_t kMostEntries = std::int64_t{1} << 23;

/// Numbers of value types in metadata.
enum ValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

/// Takes little-endian values off a stream, never beyond the file's end.
class Cursor {
 public:
  Cursor(const std::string& path, std::istream& file, std::int64_t file_bytes)
      : path_(path), file_(file), left_(file_bytes), file_bytes_(file_bytes) {}

  std::int64_t position() const { return file_bytes_ - left_; }

  void take(void* dst, std::int64_t bytes, const std::string& what) {
    FSDP_CHECK(bytes <= left_, ErrorCode::kCorrupt, "'", path_, "' ends inside of ", what,
               ": at byte ", position(), " it needs ", bytes, " bytes and there are ", left_,
               ": truncated?");
    FSDP_CHECK(bytes <= kMostHeaderBytes - position(), ErrorCode::kUnsupported, "'", path_,
               "': with ", what, " the header takes more than ", kMostHeaderBytes,
               " bytes, the most that is read");
    file_.read(static_cast<char*>(dst), bytes);
    FSDP_CHECK(file_.good(), ErrorCode::kIo, "'", path_, "' cannot be read at byte ", position(),
               ": ", std::strerror(errno));
    left_ -= bytes;
  }

  template <class T>
  T number(const std::string& what) {
    std::uint8_t bytes[sizeof(T)];
    take(bytes, sizeof(T), what);
    if constexpr (std::endian::native == std::endian::big) {
      std::reverse(std::begin(bytes), std::end(bytes));
    }
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }

  /// A uint64 that counts things of which each takes `least_bytes` at least.
  std::int64_t count(const std::string& what, std::int64_t least_bytes) {
    const auto value = number<std::uint64_t>(what);
    FSDP_CHECK(value <= static_cast<std::uint64_t>(left_ / least_bytes), ErrorCode::kCorrupt, "'",
               path_, "': ", what, " claims ", value, " entries at byte ", position(),
               ", but only ", left_, " bytes follow");
    return static_cast<std::int64_t>(value);
  }

  /// The same for things that each take memory of their own.
  std::int64_t count_entries(const std::string& what, std::int64_t least_bytes) {
    const std::int64_t value = count(what, least_bytes);
    FSDP_CHECK(value <= kMostEntries - entries_, ErrorCode::kUnsupported, "'", path_, "': with ",
               what, " and its ", value, " entries the header has more than ", kMostEntries,
               ", the most that are read");
    entries_ += value;
    return value;
  }

  std::string text(const std::string& what) {
    const std::int64_t bytes = count("the length of " + what, 1);
    FSDP_CHECK(bytes <= kMostHeaderBytes, ErrorCode::kUnsupported, "'", path_, "': ", what, " has ",
               bytes, " bytes, more than the ", kMostHeaderBytes, " of a header that is read");
    std::string value(static_cast<std::size_t>(bytes), '\0');
    take(value.data(), std::ssize(value), what);
    return value;
  }

 private:
  const std::string& path_;
  std::istream& file_;
  std::int64_t left_, file_bytes_;
  std::int64_t entries_ = 0;
};

std::int64_t as_int64(std::uint64_t value, const std::string& what) {
  FSDP_CHECK(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
             ErrorCode::kUnsupported, what, " is ", value, ", more than an int64 holds");
  return static_cast<std::int64_t>(value);
}

std::int64_t take_integer(Cursor& cursor, std::uint32_t type, const std::string& what) {
  switch (type) {
    case kUint8: return cursor.number<std::uint8_t>(what);
    case kInt8: return cursor.number<std::int8_t>(what);
    case kUint16: return cursor.number<std::uint16_t>(what);
    case kInt16: return cursor.number<std::int16_t>(what);
    case kUint32: return cursor.number<std::uint32_t>(what);
    case kInt32: return cursor.number<std::int32_t>(what);
    case kBool: return cursor.number<std::uint8_t>(what) != 0 ? 1 : 0;
    case kUint64: return as_int64(cursor.number<std::uint64_t>(what), what);
    default: return cursor.number<std::int64_t>(what);
  }
}

double take_real(Cursor& cursor, std::uint32_t type, const std::string& what) {
  return type == kFloat32 ? cursor.number<float>(what) : cursor.number<double>(what);
}

/// Bytes that a value of that type takes at least; 0 for a type that there is not.
std::int64_t least_bytes(std::uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool: return 1;
    case kUint16:
    case kInt16: return 2;
    case kUint32:
    case kInt32:
    case kFloat32: return 4;
    case kString:
    case kUint64:
    case kInt64:
    case kFloat64: return 8;
    case kArray: return 12;
    default: return 0;
  }
}

GgufValue take_array(Cursor& cursor, const std::string& what) {
  const auto type = cursor.number<std::uint32_t>(what);
  FSDP_CHECK(least_bytes(type) > 0, ErrorCode::kCorrupt, what, " has elements of the type ", type,
             ", which there is not");
  FSDP_CHECK(type != kArray, ErrorCode::kUnsupported, what, " is a list of lists");
  const std::int64_t count = cursor.count_entries(what, least_bytes(type));
  const auto take_all = [&](auto values, auto&& take_one) -> GgufValue {
    values.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(take_one());
    }
    return values;
  };
  if (type == kString) {
    return take_all(std::vector<std::string>(), [&] { return cursor.text(what); });
  }
  if (type == kFloat32 || type == kFloat64) {
    return take_all(std::vector<double>(), [&] { return take_real(cursor, type, what); });
  }
  return take_all(std::vector<std::int64_t>(), [&] { return take_integer(cursor, type, what); });
}

GgufValue take_value(Cursor& cursor, const std::string& what) {
  const auto type = cursor.number<std::uint32_t>(what);
  FSDP_CHECK(least_bytes(type) > 0, ErrorCode::kCorrupt, what, " has the type ", type,
             ", which there is not");
  switch (type) {
    case kString: return cursor.text(what);
    case kArray: return take_array(cursor, what);
    case kBool: return take_integer(cursor, type, what) != 0;
    case kFloat32:
    case kFloat64: return take_real(cursor, type, what);
    default: return take_integer(cursor, type, what);
  }
}

GgufType known_type(std::uint32_t type, const std::string& what) {
  for (const GgufType known :
       {GgufType::kF32, GgufType::kF16, GgufType::kQ4_1, GgufType::kQ8_0, GgufType::kBF16}) {
    if (static_cast<std::uint32_t>(known) == type) {
      return known;
    }
  }
  fail(ErrorCode::kUnsupported, what, " has ggml's element type ", type,
       "; supported are F32 (0), F16 (1), Q4_1 (3), Q8_0 (8) and BF16 (30)");
}

/// A tensor's entry; its offset is still that behind the header.
GgufTensor take_tensor(Cursor& cursor, const std::string& path) {
  GgufTensor tensor;
  tensor.name = cursor.text("a tensor's name");
  const std::string what = "'" + path + "': tensor '" + tensor.name + "'";
  const auto dimensions = cursor.number<std::uint32_t>(what);
  FSDP_CHECK(dimensions <= kMostDimensions, ErrorCode::kCorrupt, what, " has ", dimensions,
             " dimensions, at most ", kMostDimensions, " are allowed");
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    tensor.shape.insert(tensor.shape.begin(), as_int64(cursor.number<std::uint64_t>(what), what));
  }
  tensor.type = known_type(cursor.number<std::uint32_t>(what), what);
  tensor.offset = as_int64(cursor.number<std::uint64_t>(what), what);
  const GgufBlock block = block_of(tensor.type);
  const auto elements = detail::byte_count(tensor.shape, 1);
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  FSDP_CHECK(elements && row % block.elements == 0, ErrorCode::kCorrupt, what, " of shape ",
             detail::shape_text(tensor.shape), " does not consist of whole blocks of ",
             block.elements, " elements");
  const auto bytes = detail::byte_count({*elements / block.elements}, block.bytes);
  FSDP_CHECK(bytes, ErrorCode::kCorrupt, what, " of shape ", detail::shape_text(tensor.shape),
             " is larger than any file");
  tensor.bytes = *bytes;
  return tensor;
}

std::int64_t alignment_of(const std::map<std::string, GgufValue>& metadata,
                          const std::string& path) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) {
    return kDefaultAlignment;
  }
  const auto* value = std::get_if<std::int64_t>(&found->second);
  FSDP_CHECK(value != nullptr && *value >= 1 && *value <= (1 << 20) &&
                 std::has_single_bit(static_cast<std::uint64_t>(*value)),
             ErrorCode::kCorrupt, "'", path, "': general.alignment is no power of two");
  return *value;
}

/// Turns offsets behind the header into those in the file, and checks that tensors lie in it.
void place_tensors(GgufHeader& header, std::int64_t data_begin, std::int64_t alignment,
                   std::int64_t file_bytes, const std::string& path) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) {
              return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
            });
  std::int64_t end = data_begin;
  for (GgufTensor& tensor : header.tensors) {
    FSDP_CHECK(tensor.offset % alignment == 0, ErrorCode::kCorrupt, "'", path, "': tensor '",
               tensor.name, "' begins at ", tensor.offset, ", no multiple of ", alignment);
    const bool fits = data_begin <= file_bytes && tensor.offset <= file_bytes - data_begin &&
                      tensor.bytes <= file_bytes - data_begin - tensor.offset;
    FSDP_CHECK(fits, ErrorCode::kCorrupt, "'", path, "': tensor '", tensor.name, "' of ",
               tensor.bytes, " bytes begins at ", tensor.offset, " behind the header of ",
               data_begin, " bytes, but the file has ", file_bytes, " bytes: truncated?");
    tensor.offset += data_begin;
    FSDP_CHECK(tensor.offset >= end, ErrorCode::kCorrupt, "'", path, "': tensor '", tensor.name,
               "' begins at ", tensor.offset, ", inside of the one before, which ends at ", end);
    end = tensor.offset + tensor.bytes;
  }
}

}  // namespace

GgufHeader parse_gguf_header(const std::string& path, std::istream& file, std::int64_t file_bytes) {
  Cursor cursor(path, file, file_bytes);
  std::string magic(kMagic.size(), '\0');
  cursor.take(magic.data(), std::ssize(magic), "the magic");
  FSDP_CHECK(magic == kMagic, ErrorCode::kCorrupt, "'", path,
             "' does not begin with \"GGUF\": not a GGUF file");
  const auto version = cursor.number<std::uint32_t>("the version");
  FSDP_CHECK(version == 2 || version == 3, ErrorCode::kUnsupported, "'", path, "' has the version ",
             version, ", supported are 2 and 3, little-endian");
  const std::int64_t tensors = cursor.count_entries("the number of tensors", 24);
  const std::int64_t values = cursor.count_entries("the number of metadata", 12);
  GgufHeader header;
  for (std::int64_t i = 0; i < values; ++i) {
    const std::string key = cursor.text("a metadata's name");
    const std::string what = "'" + path + "': metadata '" + key + "'";
    FSDP_CHECK(header.metadata.emplace(key, take_value(cursor, what)).second, ErrorCode::kCorrupt,
               what, " is there twice");
  }
  std::set<std::string> names;
  for (std::int64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(take_tensor(cursor, path));
    FSDP_CHECK(names.insert(header.tensors.back().name).second, ErrorCode::kCorrupt, "'", path,
               "': tensor '", header.tensors.back().name, "' is there twice");
  }
  const std::int64_t alignment = alignment_of(header.metadata, path);
  const std::int64_t data_begin = (cursor.position() + alignment - 1) / alignment * alignment;
  place_tensors(header, data_begin, alignment, file_bytes, path);
  return header;
}

GgufHeader read_gguf_header(const std::string& path) {
  base::need_regular(path);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  FSDP_CHECK(file, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  const auto bytes = static_cast<std::int64_t>(file.tellg());
  file.seekg(0);
  return parse_gguf_header(path, file, bytes);
}

}  // namespace fsdp::format
