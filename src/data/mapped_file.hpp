// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace fsdp::data::detail {

/// A file's bytes, mapped for reading: for a look at it, not for a run, see OpenFile.
class MappedFile {
 public:
  /// @throws Error kNotFound or kIo
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const unsigned char> bytes() const { return {data_, size_}; }

 private:
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fsdp::data::detail
