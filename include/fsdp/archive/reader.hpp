// SPDX-License-Identifier: Apache-2.0
/// Opens a checkpoint, distrusts all of it, and reads ranges of its tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"

namespace fsdp::archive {

/// Who compares the sums that the index holds with the bytes of tensors.
enum class SumCheck {
  kOnFirstRead,  ///< the first read of a tensor, of all of it
  /// The caller: by check_sum(), or because it reads every byte anyway. For ranks that share the
  /// work.
  kByCaller,
};

/// A complete checkpoint.
///
/// *Thread safety*: immutable after construction; reads may run side by side. Nothing is mapped, so
/// the files may be replaced while it lives.
class Checkpoint {
 public:
  /// Reads the index, checks every file's size, that the header of each safetensors file describes
  /// the tensors that the index has in it, and the sums of headers and documents.
  /// @throws Error kNotFound, kIo, kCorrupt, kUnsupported, each naming the file and both values
  explicit Checkpoint(const std::string& path, SumCheck sums = SumCheck::kOnFirstRead);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) = delete;

  const Index& index() const { return index_; }
  const std::string& path() const { return path_; }

  /// Reads `bytes` bytes from `tensor_offset` of a tensor of this index. With kOnFirstRead the
  /// first read of a tensor costs reading all of it.
  /// @throws Error kInvalidArgument for a range outside of it; kIo; kCorrupt, also for a wrong sum
  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes, void* dst) const;
  /// Reads all of a tensor and compares its sum. @memory a constant buffer
  /// @throws Error kIo; kCorrupt naming file, tensor and both sums
  void check_sum(const Tensor& tensor) const;
  /// Asks the system to fetch a range that read() takes soon. A hint: nothing is checked.
  void will_read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes) const;
  /// Reads the first `bytes` bytes of a file. @throws as read()
  void read_head(const StoredFile& file, std::int64_t offset, std::int64_t bytes, void* dst) const;

 private:
  struct Files;
  std::string path_;
  SumCheck sums_;
  Index index_;
  std::unique_ptr<Files> files_;
};

/// Reads every byte of a checkpoint and compares all sums. Returns what is wrong, one line each and
/// naming file and tensor; nothing when all is well. @memory a constant buffer and the index
std::vector<std::string> verify_checkpoint(const std::string& path);

}  // namespace fsdp::archive
