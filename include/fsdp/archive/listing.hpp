// SPDX-License-Identifier: Apache-2.0
/// Which checkpoints a directory holds and which of them is the one to go on from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::archive {

/// A checkpoint in a root, or what is left of one.
struct FoundCheckpoint {
  std::int64_t step = 0;
  std::string path = {};
  std::string problem = {};  ///< why it is incomplete; empty when it is complete
  std::int64_t bytes = 0;    ///< of all files that the index names; 0 without a sound index

  bool is_complete() const { return problem.empty(); }
};

/// Everything in `root` that is or was to be a checkpoint, by ascending step. Complete means: the
/// index is sound and each file that it names has its size; contents are verify_checkpoint()'s.
/// Costs reading the indexes. @throws Error kNotFound when there is no such directory, kIo
std::vector<FoundCheckpoint> list_checkpoints(const std::string& root);

/// The newest complete checkpoint, and the newer ones that were passed over.
struct LatestCheckpoint {
  std::optional<FoundCheckpoint> found = {};
  std::vector<FoundCheckpoint> skipped = {};
};

/// Nothing is found in a root that does not exist or holds no checkpoint: a run begins there. Saves
/// that did not end are none.
/// @throws Error as list_checkpoints(); kCorrupt when there are checkpoints but none is complete,
/// with each one's problem: a run that went on from nothing would lose what can be repaired
LatestCheckpoint latest_checkpoint(const std::string& root);

/// The checkpoint that a person means by `path`: itself when it holds an index, else the newest
/// complete one in it. @throws Error kNotFound naming what was looked for and what was incomplete;
/// kInvalidArgument for weights alone, which load_weights() reads
std::string resolve_checkpoint(const std::string& path);

}  // namespace fsdp::archive
