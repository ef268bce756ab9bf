// SPDX-License-Identifier: Apache-2.0
/// The safetensors file format as arithmetic: which bytes make the header and where each tensor
/// lies. Writers compute the layout once and then every rank writes its own ranges; the reader
/// checks a file's header before anything trusts it. A file is: 8 bytes little-endian length of the
/// JSON, the JSON (padded with spaces so that data starts at a multiple of 8), then the tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::format {

/// A tensor as the header names it. `dtype` is safetensors' own name: "F32", "BF16", ...
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Where everything of a file goes.
struct SafetensorsLayout {
  std::string header;                 ///< the 8-byte length and the JSON, ready to write at 0
  std::vector<std::int64_t> offsets;  ///< position in the file of each entry's first byte
  std::int64_t file_bytes = 0;
};

/// Lays the entries out one after the other: the widest element types first, and in the given order
/// among equals, so that every tensor is aligned to its element. `offsets` follow the given order.
/// @throws Error kInvalidArgument for an unknown dtype, a negative size, a name that is empty, used
/// twice or "__metadata__"
SafetensorsLayout plan_safetensors(const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata = {});

/// A tensor found in a file.
struct StoredTensor {
  TensorEntry entry;
  std::int64_t offset = 0;  ///< position in the file of its first byte
  std::int64_t bytes = 0;
};

/// A checked header.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in the order of their offsets
  std::map<std::string, std::string> metadata;
  std::int64_t head_bytes = 0;  ///< the length and the JSON: where the tensors begin
  std::int64_t file_bytes = 0;
};

/// Reads and checks the header of `path`; reads no tensor.
/// @throws Error kNotFound or kIo when the file cannot be read; kCorrupt when the file is shorter
/// than its header claims, when it is truncated or has bytes too many, when tensors overlap or
/// leave holes, when a range does not fit its shape, when the JSON is broken; kUnsupported for a
/// dtype that safetensors does not know.
SafetensorsHeader read_safetensors_header(const std::string& path);

/// The same for a header that has been read: `json` without its 8-byte length, of a file of
/// `file_bytes` bytes that errors call `path`.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           std::int64_t file_bytes);

/// Bytes of one element of a safetensors dtype; 0 for an unknown name.
std::int64_t element_bytes(const std::string& dtype);

}  // namespace fsdp::format
