// SPDX-License-Identifier: Apache-2.0
/// Weights wherever they lie, and writing them elsewhere in other files or another precision: what
/// `fsdp checkpoint merge`, `split` and `convert` are made of. No ranks, constant memory.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"
#include "fsdp/archive/reader.hpp"

namespace fsdp::archive {

/// What to say of weights that are missing at `path`, if it is one file of several: the directory
/// to give in its place, or the index that is not beside it. Empty for anything else.
std::string hint_for_part(const std::string& path);

/// The tensors of a model in a checkpoint (or the newest one of a run's directory), in a directory
/// as Hugging Face writes it (model.safetensors, or several files and their index), in one
/// safetensors file, or in a GGUF file of a Llama model, decoded to float32 as it is read.
///
/// *Thread safety*: immutable after construction; reads may run side by side.
class WeightSource {
 public:
  /// Opens it and checks headers and sizes as Checkpoint does. The tensors of a checkpoint have
  /// sums, compared as `sums` says; other files have none.
  /// @throws Error kNotFound when there is nothing at `path`; kCorrupt, kIo, kUnsupported
  explicit WeightSource(const std::string& path, SumCheck sums = SumCheck::kOnFirstRead);
  /// The weights at `path` with LoRA adapters added to them as they are read: `adapter` is a
  /// directory that PEFT or `fsdp train --lora-rank` wrote. @memory the adapters
  /// @throws as above; kMismatch for an adapter that fits no weight here
  static WeightSource with_adapter(const std::string& path, const std::string& adapter,
                                   SumCheck sums = SumCheck::kOnFirstRead);
  ~WeightSource();
  WeightSource(WeightSource&&) noexcept;
  WeightSource& operator=(WeightSource&&) = delete;

  /// In the order of the files; offsets are those in their files, sums are zero except for a
  /// checkpoint's.
  const std::vector<Tensor>& tensors() const;
  /// nullptr without one of that name.
  const Tensor* find(const std::string& name) const;
  const std::map<std::string, std::string>& aliases() const;
  /// The text of a config.json beside the weights; empty without one.
  const std::string& config() const;
  /// Files beside the weights that belong to the model, by name: config.json and its tokenizer's
  /// (tokenizer.json, vocab.json, merges.txt and such).
  const std::map<std::string, std::string>& documents() const;
  /// Reads `bytes` bytes from `tensor_offset` of a tensor of this source.
  /// @throws Error kInvalidArgument for a range outside of it, and for GGUF or adapted weights one
  /// that does not consist of whole elements; kIo, kCorrupt
  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes, void* dst) const;
  /// Reads all of a tensor of a checkpoint and compares its sum; nothing where there is none.
  /// @throws Error kIo; kCorrupt naming file, tensor and both sums
  void check_sum(const Tensor& tensor) const;
  /// Asks the system to fetch a range that read() takes soon. A hint: nothing is checked.
  void will_read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes) const;

 private:
  struct Parts;
  explicit WeightSource(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// How write_weights() lays weights out.
struct WriteWeightsOptions {
  /// Start another file where a file would exceed this; a file holds at least one tensor.
  std::int64_t max_file_bytes = std::numeric_limits<std::int64_t>::max();
  /// "F32", "F64", "F16" or "BF16" for all floating-point tensors, rounded to nearest even; empty
  /// keeps each as it is.
  std::string dtype = {};
};

/// Writes all weights to `target`: into that one file when it ends in ".safetensors", else into a
/// directory of files, with their index where they are several, and the source's documents.
/// Complete or not there: written beside and renamed.
/// @memory a constant buffer @throws Error kInvalidArgument when the target exists, for several
/// files where one is named, or for another dtype; kIo; what reading throws
void write_weights(const WeightSource& source, const std::string& target,
                   const WriteWeightsOptions& options = {});

}  // namespace fsdp::archive
