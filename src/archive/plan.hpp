// SPDX-License-Identifier: Apache-2.0
/// Which tensor goes into which file, and which bytes of the files each rank writes or reads: pure
/// functions of sizes. Ranks exchange nothing to agree on a plan, and since files hold whole
/// tensors in their logical order, a plan for reading knows nothing of the ranks that wrote.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

/// A safetensors file before its tensors are in it.
struct PlannedFile {
  std::string name;
  std::string head;  ///< its first bytes
  std::int64_t bytes = 0;
};

/// Files and the tensors in them.
struct FilePlan {
  std::vector<PlannedFile> files;
  std::vector<Tensor> tensors;  ///< in the order of the entries, sums still zero
};

/// Lays a section's tensors over "<section>.safetensors", or, where they take more than
/// `max_file_bytes`, over "<section>-00001-of-00003.safetensors" and so on, as Hugging Face readers
/// expect; a tensor is never cut, so a file may be as large as the largest tensor. No entries, no
/// file. `metadata` goes into each header.
/// @throws Error kInvalidArgument as format::plan_safetensors() does, and for max_file_bytes < 1
FilePlan plan_files(Section section, const std::vector<format::TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata,
                    std::int64_t max_file_bytes);

/// The "<section>.safetensors.index.json" beside several files: tensor -> file and total size.
/// Empty for one file.
std::string weight_map_json(const FilePlan& plan);

/// A rank's part of a flattened tensor, in elements: [begin, end).
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A part of one tensor as bytes of its file.
struct ByteRange {
  std::size_t tensor = 0;          ///< position among the tensors
  std::int64_t tensor_offset = 0;  ///< bytes of the tensor before the range
  std::int64_t offset = 0;         ///< its first byte's position in the tensor's file
  std::int64_t bytes = 0;
};

/// What a rank with `slices` (one per tensor) writes or reads, in the order of the tensors; nothing
/// for empty slices. @throws Error kInvalidArgument for a slice outside of its tensor
std::vector<ByteRange> plan_ranges(const std::vector<Tensor>& tensors,
                                   const std::vector<Slice>& slices);

}  // namespace fsdp::archive
