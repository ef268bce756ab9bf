// SPDX-License-Identifier: Apache-2.0
/// The index of a checkpoint: which logical tensors it holds, where their bytes lie, their sums,
/// and every value that a run needs to go on. It is the last file of a checkpoint to be written, so
/// a directory with a sound index is complete. docs/reference/checkpoint-format.md is its
/// specification. Nothing in it records how many ranks wrote it or which bytes were whose.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdp::archive {

/// The index's name in a checkpoint's directory.
inline constexpr const char* kIndexName = "checkpoint.json";

/// A number, a truth or a text of a run.
using Value = std::variant<bool, std::int64_t, double, std::string>;
using Values = std::map<std::string, Value>;

/// A value as its JSON text, a text without its quotes.
std::string to_text(const Value& value);

/// What a tensor is part of; each section has its own files and its own names.
enum class Section {
  kModel,      ///< parameters and buffers, under the module's names
  kOptimizer,  ///< shaped like a parameter: "<parameter>.exp_avg"
  kState,      ///< anything else, such as "rng.cpu.0"
};

/// "model", "optimizer", "state"; files are named after it.
const char* to_string(Section section);

/// A whole logical tensor in a file, row-major.
struct Tensor {
  Section section = Section::kModel;
  std::string name = {};
  std::string dtype = {};  ///< safetensors' name of it: "F32"
  std::vector<std::int64_t> shape = {};
  std::string file = {};
  std::int64_t offset = 0;  ///< its first byte's position in the file
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// A file of the checkpoint. Its first `head_bytes` bytes are no tensor's: the header of a
/// safetensors file, or all of another one.
struct StoredFile {
  std::string name = {};  ///< without a directory
  std::int64_t bytes = 0;
  std::int64_t head_bytes = 0;
  std::uint32_t head_crc32 = 0;
};

/// *Invariants* of one that parse_index() returns: names are unique within a section, every tensor
/// fits its shape, and the tensors of a file follow its head without gap or overlap to its end.
struct Index {
  std::int64_t step = 0;
  std::vector<StoredFile> files = {};
  std::vector<Tensor> tensors = {};  ///< by section, file and offset
  std::map<std::string, std::string> aliases =
      {};                                          ///< other name -> name of the model tensor it is
  std::map<std::string, std::int64_t> steps = {};  ///< parameter -> optimizer steps it has taken
  std::map<std::string, Values> values = {};  ///< "optimizer", "schedule", "data", "config", ...

  /// The tensor of that name, nullptr without one. Costs a pass over all.
  const Tensor* find(Section section, std::string_view name) const;
};

/// Elements of a shape.
std::int64_t numel(const std::vector<std::int64_t>& shape);

/// The index as text; equal indexes give equal bytes.
std::string to_json(const Index& index);

/// Reads the text of an index; errors call it `path`.
/// @throws Error kCorrupt for a text that its own sum does not fit, is no index or breaks an
/// invariant; kUnsupported for a version that this library does not know
Index parse_index(const std::string& path, std::string_view text);

}  // namespace fsdp::archive
