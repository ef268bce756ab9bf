// SPDX-License-Identifier: Apache-2.0
/// What a sharded module says of itself.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/engine/strategy.hpp"

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
  std::int64_t transfers = 0;        ///< between host and device, see Options::offload
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
  bool is_unsharded = false;
};

}  // namespace fsdp
