// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/open_file.hpp"

namespace fsdp::data::detail {

struct MappingGuard;

/// A file's bytes, mapped for reading: for what wants a text of any size in one piece. What is read
/// in parts is an OpenFile.
///
/// NOTE [Files that get shorter while they are mapped]
/// Reading behind the end of a mapped file is SIGBUS, which ends the process without the file's
/// name. So a handler, installed with the first mapping, puts zeros in the place of what is gone,
/// takes a note, and lets the read go on; check() turns the note into an error. Faults elsewhere go
/// to the handler that was there before.
///
/// *Thread safety*: as a span; check() from any thread.
class MappedFile {
 public:
  /// @throws Error kNotFound or kIo
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const unsigned char> bytes() const { return {data_, size_}; }
  /// To be called before what was made of the bytes is used. @throws Error kCorrupt when the file
  /// has become shorter meanwhile
  void check() const;

 private:
  OpenFile file_;
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
  MappingGuard* guard_ = nullptr;
};

}  // namespace fsdp::data::detail
