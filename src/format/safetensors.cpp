// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/safetensors.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include "base/text.hpp"
#include "format/shape.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format {

namespace detail {

std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape,
                                       std::int64_t itemsize) {
  std::int64_t bytes = itemsize;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return "[" + base::list_text(shape) + "]";
}

}  // namespace detail

namespace {

using detail::byte_count;
using detail::shape_text;

constexpr std::size_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

std::string length_prefix(std::uint64_t length) {
  std::string prefix(kLengthBytes, '\0');
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  }
  return prefix;
}

/// A JSON string; bytes from 0x80 on are passed on as UTF-8.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      result += escaped;
      continue;
    }
    if (character == '"' || character == '\\') {
      result += '\\';
    }
    result += character;
  }
  return result + "\"";
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : ",") + part;
  }
  return text;
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> parts;
  parts.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    parts.push_back(std::to_string(number));
  }
  return joined(parts);
}

}  // namespace

std::int64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2},
      {"U16", 2},  {"F16", 2}, {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},
      {"I64", 8},  {"U64", 8}, {"F64", 8},  {"C64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

SafetensorsLayout plan_safetensors(const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  std::vector<std::int64_t> bytes;
  bytes.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    FSDP_CHECK(!entry.name.empty() && entry.name != kMetadataKey, ErrorCode::kInvalidArgument,
               "safetensors: a tensor cannot be named '", entry.name, "'");
    FSDP_CHECK(names.insert(entry.name).second, ErrorCode::kInvalidArgument,
               "safetensors: two tensors are named '", entry.name, "'");
    FSDP_CHECK(element_bytes(entry.dtype) > 0, ErrorCode::kInvalidArgument, "safetensors: tensor '",
               entry.name, "' has the unknown dtype '", entry.dtype, "'");
    const auto count = byte_count(entry.shape, element_bytes(entry.dtype));
    FSDP_CHECK(count.has_value(), ErrorCode::kInvalidArgument, "safetensors: tensor '", entry.name,
               "' has the impossible shape ", shape_text(entry.shape));
    bytes.push_back(count.value_or(0));
  }
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::int64_t left = element_bytes(entries[a].dtype);
    const std::int64_t right = element_bytes(entries[b].dtype);
    return left != right ? left > right : a < b;
  });

  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    pairs.reserve(metadata.size());
    for (const auto& [key, value] : metadata) {
      pairs.push_back(quoted(key) + ":" + quoted(value));
    }
    items.push_back(quoted(kMetadataKey) + ":{" + joined(pairs) + "}");
  }

  SafetensorsLayout layout;
  layout.offsets.resize(entries.size());
  std::int64_t end = 0;
  for (const std::size_t index : order) {
    const TensorEntry& entry = entries[index];
    const std::int64_t begin = end;
    end += bytes[index];
    layout.offsets[index] = begin;
    items.push_back(quoted(entry.name) + ":{\"dtype\":" + quoted(entry.dtype) + ",\"shape\":[" +
                    joined(entry.shape) + "],\"data_offsets\":[" + joined({begin, end}) + "]}");
  }
  std::string text = "{" + joined(items) + "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  layout.header = length_prefix(text.size()) + text;
  const auto data_begin = static_cast<std::int64_t>(layout.header.size());
  for (std::int64_t& offset : layout.offsets) {
    offset += data_begin;
  }
  layout.file_bytes = data_begin + end;
  return layout;
}

}  // namespace fsdp::format
