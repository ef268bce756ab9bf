// SPDX-License-Identifier: Apache-2.0
#include "archive/plan.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fsdp/base/error.hpp"

namespace fsdp::archive {
namespace {

std::int64_t entry_bytes(const format::TensorEntry& entry) {
  return numel(entry.shape) * format::element_bytes(entry.dtype);
}

/// Consecutive entries, as many to a file as fit: the position of each file's first entry.
std::vector<std::size_t> cut(const std::vector<format::TensorEntry>& entries,
                             std::int64_t max_file_bytes) {
  std::vector<std::size_t> begins;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::int64_t bytes = entry_bytes(entries[i]);
    if (begins.empty() || (filled > 0 && filled > max_file_bytes - bytes)) {
      begins.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  return begins;
}

std::string file_name(Section section, std::size_t number, std::size_t count) {
  char part[40] = "";
  if (count > 1) {
    std::snprintf(part, sizeof part, "-%05zu-of-%05zu", number + 1, count);
  }
  return std::string(to_string(section)) + part + ".safetensors";
}

}  // namespace

FilePlan plan_files(Section section, const std::vector<format::TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata,
                    std::int64_t max_file_bytes) {
  FSDP_CHECK(max_file_bytes >= 1, ErrorCode::kInvalidArgument, "a file of at most ", max_file_bytes,
             " bytes cannot hold a tensor");
  // All at once first: a name in two files would be found by neither file's own check.
  format::plan_safetensors(entries);
  const std::vector<std::size_t> begins = cut(entries, max_file_bytes);
  FilePlan plan;
  for (std::size_t number = 0; number < begins.size(); ++number) {
    const std::size_t end = number + 1 < begins.size() ? begins[number + 1] : entries.size();
    const std::vector<format::TensorEntry> part(
        entries.begin() + static_cast<std::ptrdiff_t>(begins[number]),
        entries.begin() + static_cast<std::ptrdiff_t>(end));
    format::SafetensorsLayout layout = format::plan_safetensors(part, metadata);
    const std::string name = file_name(section, number, begins.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      plan.tensors.push_back({.section = section,
                              .name = part[i].name,
                              .dtype = part[i].dtype,
                              .shape = part[i].shape,
                              .file = name,
                              .offset = layout.offsets[i],
                              .bytes = entry_bytes(part[i])});
    }
    plan.files.push_back(
        {.name = name, .head = std::move(layout.header), .bytes = layout.file_bytes});
  }
  return plan;
}

std::string weight_map_json(const FilePlan& plan) {
  if (plan.files.size() < 2) {
    return "";
  }
  std::int64_t total = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const Tensor& tensor : plan.tensors) {
    total += tensor.bytes;
    map[tensor.name] = tensor.file;
  }
  return nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(
             1) +
         "\n";
}

std::vector<ByteRange> plan_ranges(const std::vector<Tensor>& tensors,
                                   const std::vector<Slice>& slices) {
  FSDP_CHECK(tensors.size() == slices.size(), ErrorCode::kInvalidArgument, slices.size(),
             " slices for ", tensors.size(), " tensors");
  std::vector<ByteRange> ranges;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t itemsize = format::element_bytes(tensors[i].dtype);
    const Slice slice = slices[i];
    FSDP_CHECK(0 <= slice.begin && slice.begin <= slice.end &&
                   slice.end <= tensors[i].bytes / std::max<std::int64_t>(1, itemsize),
               ErrorCode::kInvalidArgument, "the slice ", slice.begin, " to ", slice.end, " of '",
               tensors[i].name, "' lies outside of its ", numel(tensors[i].shape), " elements");
    if (slice.begin < slice.end) {
      ranges.push_back({.tensor = i,
                        .tensor_offset = slice.begin * itemsize,
                        .offset = tensors[i].offset + slice.begin * itemsize,
                        .bytes = (slice.end - slice.begin) * itemsize});
    }
  }
  return ranges;
}

}  // namespace fsdp::archive
