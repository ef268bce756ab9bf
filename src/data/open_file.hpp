// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/descriptor.hpp"

namespace fsdp::data::detail {

/// A file that is read at places, for as long as a run takes. Not mapped: one that is truncated
/// meanwhile is an error with its name, and no SIGBUS.
///
/// *Thread safety*: reads may run side by side.
class OpenFile {
 public:
  /// @throws Error kNotFound or kIo
  explicit OpenFile(const std::string& path);

  std::int64_t size() const { return size_; }
  int descriptor() const { return file_.get(); }
  /// @throws Error kCorrupt when the file has become shorter, kIo
  void read(std::int64_t offset, std::int64_t bytes, void* dst) const;

 private:
  std::string path_;
  base::Descriptor file_;
  std::int64_t size_ = 0;
};

}  // namespace fsdp::data::detail
