// SPDX-License-Identifier: Apache-2.0
/// The launcher's own standard output or error, where all ranks speak.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

namespace fsdp::launch::detail {

/// Writes all it is given, however slow the reader is, until the reader has gone or the job is over
/// anyway.
class Terminal {
 public:
  /// While the reader takes nothing, `is_over` is asked whether to drop the rest.
  Terminal(int descriptor, std::function<bool()> is_over)
      : descriptor_(descriptor), is_over_(std::move(is_over)) {}

  int descriptor() const { return descriptor_; }
  /// Whether the reader has gone: what `head` does to its input.
  bool is_broken() const { return is_broken_; }
  /// Whether some of it could not be written: a full disk.
  bool has_lost() const { return has_complained_; }
  void write(std::string_view text);

 private:
  int descriptor_;
  std::function<bool()> is_over_;
  bool is_broken_ = false;
  bool has_complained_ = false;
};

}  // namespace fsdp::launch::detail
