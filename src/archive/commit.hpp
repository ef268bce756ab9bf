// SPDX-License-Identifier: Apache-2.0
/// How a draft becomes a checkpoint, in one step that a crash cannot split: the index is written
/// last, everything is on disk, and one rename puts the directory in its place. A run killed at any
/// moment therefore has, under the visible names, complete checkpoints only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "archive/draft.hpp"
#include "fsdp/archive/index.hpp"

namespace fsdp::archive {

/// Enters a section's files and tensors; their order decides what PieceSum::tensor counts.
void add_plan(Index& index, const FilePlan& plan);

/// What belongs to a checkpoint besides its tensors.
struct CommitOptions {
  std::map<std::string, std::string> documents = {};  ///< further files: "config.json" and such
  int keep = 0;  ///< complete checkpoints to keep in the root; 0 keeps all
};

/// Completes and publishes a draft of which all pieces are written: enters the tensors' sums,
/// writes documents and index, syncs, renames. A checkpoint of the same step is exchanged for the
/// new one in the same instant. Then removes the oldest beyond `keep`, never the new one.
/// @throws Error kInternal when the sums leave a byte of a tensor out; kIo; kUnsupported where the
/// file system cannot exchange directories and the step has a checkpoint already. What was complete
/// before stays so.
void commit_draft(const Draft& draft, Index index, std::vector<PieceSum> sums,
                  const CommitOptions& options = {});

/// Holds a root for one writer until it ends, also when it is killed.
class RootLock {
 public:
  /// Creates the root. Waits up to `patience_s` seconds for another writer to end.
  /// @throws Error kIo when another run writes there
  explicit RootLock(const std::string& root, double patience_s = 10);
  ~RootLock();
  /// Whether that directory is the one that is held: after a move it is another.
  bool holds(const std::string& root) const;
  RootLock(const RootLock&) = delete;
  RootLock& operator=(const RootLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace fsdp::archive
