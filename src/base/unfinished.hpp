// SPDX-License-Identifier: Apache-2.0
/// A file or directory on its way: made beside its place under a name that nobody else has, and
/// renamed when it is complete. Of several that are made for one place at once, each is whole, and
/// the last one stays.
#pragma once

#include <string>

#include "base/descriptor.hpp"

namespace fsdp::base {

enum class PathKind { kFile, kDirectory };

/// *Thread safety*: none.
class Unfinished {
 public:
  /// Makes it, empty, in the directory of `target`, which is there. Removes what a killed process
  /// left of its own for that target: those have a name of this form and nobody's lock.
  /// @throws Error kIo, kNotFound
  Unfinished(const std::string& target, PathKind kind);
  /// Removes what was not finished.
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  /// "DIRECTORY/.NAME.partial-KEY", hidden.
  const std::string& path() const { return path_; }
  /// Puts it in its place; a file that has the place is replaced. @throws Error kIo
  void finish();

 private:
  std::string target_, path_;
  Descriptor lock_;
};

}  // namespace fsdp::base
