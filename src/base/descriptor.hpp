// SPDX-License-Identifier: Apache-2.0
/// An owned file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace fsdp::base {

/// Closes what it holds. *Thread safety*: none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  /// -1 when it holds none.
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  void reset(int value = -1) {
    if (value_ >= 0) {
      ::close(value_);
    }
    value_ = value;
  }

 private:
  int value_ = -1;
};

}  // namespace fsdp::base
