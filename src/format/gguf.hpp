// SPDX-License-Identifier: Apache-2.0
/// GGUF, the file format of ggml and llama.cpp: a header with metadata and tensors, whose elements
/// are plain or quantised in blocks. Reads versions 2 and 3, little-endian; the types F32, F16,
/// BF16, Q8_0 and Q4_1. Trusts no number of a file before it fits the file's size.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace fsdp::format {

/// ggml's numbers of element types that can be decoded here.
enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

/// A metadata value. Integers of any width are int64; lists hold one kind each.
using GgufValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

/// Where a tensor lies in the file, and as what.
struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<std::int64_t> shape;  ///< row-major, the last dimension is contiguous
  std::int64_t offset = 0;          ///< position in the file of its first byte
  std::int64_t bytes = 0;
};

/// A checked header. *Invariants*: names are unique; tensors lie inside the file, do not
/// overlap, and their last dimension holds whole blocks.
struct GgufHeader {
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;  ///< in the order of their offsets
};

/// Reads the header of `path`; reads no tensor. @memory the metadata: at most 64 MiB of a file and
/// 8 Mi entries, beyond which a header is refused
/// @throws Error kNotFound or kIo when the file cannot be read; kCorrupt when it is no GGUF file or
/// breaks an invariant, naming the place; kUnsupported for another version, for big-endian files
/// and for an element type that is not listed above, naming the tensor
GgufHeader read_gguf_header(const std::string& path);
/// The same for a stream that holds a file of `file_bytes` bytes which errors call `path`.
GgufHeader parse_gguf_header(const std::string& path, std::istream& file, std::int64_t file_bytes);

/// Elements of a block, and its bytes.
struct GgufBlock {
  std::int64_t elements = 1;
  std::int64_t bytes = 0;
};
GgufBlock block_of(GgufType type);

/// Decodes `blocks` whole blocks into float.
void decode_blocks(GgufType type, const void* src, std::int64_t blocks, float* dst);

}  // namespace fsdp::format
