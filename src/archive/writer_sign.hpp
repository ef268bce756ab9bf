// SPDX-License-Identifier: Apache-2.0
/// A sign in a draft that a rank's process lives. One that was killed can say nothing; what it held
/// locked, the kernel lets go. Known among the processes of one host: whether hosts see each
/// other's locks depends on the file system, so theirs count for nothing.
#pragma once

#include "archive/draft.hpp"
#include "base/descriptor.hpp"

namespace fsdp::archive {

/// Stands for as long as this lives. Where the file system has no locks there is none.
/// *Thread safety*: none.
class WriterSign {
 public:
  WriterSign(const Draft& draft, int rank);

 private:
  base::Descriptor file_;  ///< a lock on it
};

/// Whether a process of this host gave its sign and has ended, or withdrawn it. It may have left a
/// receipt, or a failure, just before.
bool has_gone(const Draft& draft, int rank);

}  // namespace fsdp::archive
