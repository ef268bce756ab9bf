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

namespace fsdp::archive {

/// The tensors of a model in a checkpoint (or the newest one of a run's directory), in a directory
/// as Hugging Face writes it (model.safetensors, or several files and their index), or in one
/// safetensors file.
///
/// *Thread safety*: immutable after construction; reads may run side by side.
class WeightSource {
 public:
  /// Opens it and checks headers and sizes as Checkpoint does; contents are not summed.
  /// @throws Error kNotFound when there is nothing at `path`; kCorrupt, kIo, kUnsupported
  explicit WeightSource(const std::string& path);
  ~WeightSource();
  WeightSource(WeightSource&&) noexcept;
  WeightSource& operator=(WeightSource&&) = delete;

  /// In the order of the files; offsets are those in their files, sums are zero but for a
  /// checkpoint's.
  const std::vector<Tensor>& tensors() const;
  /// nullptr without one of that name.
  const Tensor* find(const std::string& name) const;
  const std::map<std::string, std::string>& aliases() const;
  /// The text of a config.json beside the weights; empty without one.
  const std::string& config() const;
  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes, void* dst) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct WriteWeightsOptions {
  /// Start another file where a file would exceed this; a file holds at least one tensor.
  std::int64_t max_file_bytes = std::numeric_limits<std::int64_t>::max();
  /// "F32", "F64", "F16" or "BF16" for all floating-point tensors, rounded to nearest even; empty
  /// keeps each as it is.
  std::string dtype = {};
};

/// Writes all weights to `target`: into that one file when it ends in ".safetensors", else into a
/// directory of files, with their index where they are several, and config.json. Complete or not
/// there: written beside and renamed.
/// @memory a constant buffer @throws Error kInvalidArgument when the target exists, for several
/// files where one is named, or for another dtype; kIo; what reading throws
void write_weights(const WeightSource& source, const std::string& target,
                   const WriteWeightsOptions& options = {});

}  // namespace fsdp::archive
