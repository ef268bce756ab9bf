// SPDX-License-Identifier: Apache-2.0
/// What a sharded module says of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/engine/strategy.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp {

/// What happened since the counters were reset. Logical bytes leave padding out.
struct Counters {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t reduce_bytes = 0;
  std::int64_t padding_bytes = 0;       ///< moved beside the logical bytes, gathers and reductions
  std::int64_t secondary_gathers = 0;   ///< those of the gathers that came from secondary shards
  std::int64_t replica_reductions = 0;  ///< units reduced over replicas
  std::int64_t replica_bytes = 0;       ///< logical; of an all-reduce, twice this rank's slice
  std::int64_t refreshes = 0;           ///< gathers of new weights over replicas
  std::int64_t refresh_bytes = 0;
  std::int64_t touches = 0;          ///< operators that took a weight
  std::int64_t casts = 0;            ///< of a shard into the type that operators take
  std::int64_t transfers = 0;        ///< between host and device, see MemoryOptions::offload
  std::int64_t transfer_bytes = 0;   ///< padding included
  std::int64_t prefetch_misses = 0;  ///< touches that the recorded order did not predict
};

/// A unit as a report shows it.
struct UnitInfo {
  std::string name;
  Strategy strategy = Strategy::kFullShard;
  std::int64_t numel = 0;              ///< logical elements
  std::int64_t padded_numel = 0;       ///< size() equal slices
  std::int64_t shard_numel = 0;        ///< of them in this rank's shard
  std::int64_t itemsize = 0;           ///< bytes of an element of the shards
  std::int64_t gathered_itemsize = 0;  ///< and of the weights that operators take
  int parameters = 0;
  bool stays_gathered = false;  ///< to the end of backward, see UnitRule::keep_gathered
  bool is_optional = false;     ///< see UnitRule::optional
  bool is_unsharded = false;    ///< its weights are gathered at this moment
};

/// A sharded module at one moment, on one rank.
struct Report {
  int ranks = 1;
  std::vector<UnitInfo> units = {};
  std::int64_t unsharded_numel = 0;  ///< elements gathered at this moment, logical
  Counters counters = {};
  /// What this rank will hold at its peak, by kind: known when sharding, and kept exactly. Moments
  /// are those of the fsdp::optim optimizers that were built on the module, before that what
  /// MemoryOptions::moments says; full_parameters() comes on top.
  memory::Bytes promise = {};
  /// What it holds now and the largest that each kind has been. Moments are there when the
  /// optimizer enters them, as those of fsdp::optim do.
  memory::Bytes live = {}, peak = {};
  std::int64_t peak_total = 0;  ///< the largest that all kinds together have been
};

/// A table of the units, then the traffic, then the memory, as a person reads them.
std::string to_string(const Report& report);

}  // namespace fsdp
