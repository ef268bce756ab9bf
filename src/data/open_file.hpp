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
  /// `is_cut`: it was shorter at some time since. @throws Error kCorrupt when it was or is shorter
  void check_size(bool is_cut = false) const;

 private:
  [[noreturn]] void refuse_cut(std::int64_t end) const;

  std::string path_;
  base::Descriptor file_;
  std::int64_t size_ = 0;
};

}  // namespace fsdp::data::detail
