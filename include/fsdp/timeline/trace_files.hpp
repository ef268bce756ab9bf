// SPDX-License-Identifier: Apache-2.0
/// What all ranks did, as a file that https://ui.perfetto.dev opens (also offline) and any other
/// reader of Chrome's trace events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/world.hpp"
#include "fsdp/engine/sharded.hpp"
#include "fsdp/trace/recorder.hpp"

namespace fsdp {

/// What write_trace() has written.
struct TraceFiles {
  std::string path;  ///< the file of all ranks
  /// Ranks whose own file rank 0 did not find in its directory, as of hosts without a file system
  /// in common: copy theirs there by hand. The same on all ranks.
  std::vector<int> missing = {};
  /// Times of different ranks in the file are at most this far from each other's clock.
  std::int64_t clock_error_ns = 0;
};

/// Takes what the recorder has kept, writes it to `directory`/rank-R.json, and on rank 0 those of
/// all ranks to `directory`/trace.json. Files of an earlier trace are replaced. A rank is a process
/// with a row for the program's regions, one for the units that compute and what they wait for, and
/// rows for weights and gradients on their way; arrows lead from a gather to the computation that
/// took its weights. A wait is named after the unit that is missing.
/// @collective all ranks, outside of a step @blocks @cost some 20 small exchanges, and the files:
/// about 200 bytes per event
/// @throws Error kIo on all ranks when one cannot write, "rank R: " in front
TraceFiles write_trace(const Sharded& sharded, const World& world, trace::Recorder& recorder,
                       const std::string& directory);

}  // namespace fsdp
