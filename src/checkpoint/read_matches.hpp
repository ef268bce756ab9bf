// SPDX-License-Identifier: Apache-2.0
/// Stored tensors into the shards that they belong to.
#pragma once

#include <vector>

#include "checkpoint/matching.hpp"
#include "checkpoint/range_reader.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint::detail {

/// Tells the engine, on every rank alike, that its shards are about to be written: with memory that
/// ranks share, the first write waits for all ranks, whether their parts are empty or not.
void announce_writes(Sharded& sharded);

/// Reads this rank's part of every match. The system fetches ahead: a rank's ranges lie apart, and
/// a disk that learns of them one by one stands still in between. Sums are zero without `sums`.
std::vector<ReadSum> read_matches(const StoredBytes& stored, const std::vector<Match>& matches,
                                  bool sums);

}  // namespace fsdp::checkpoint::detail
