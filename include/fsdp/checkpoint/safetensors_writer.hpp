// SPDX-License-Identifier: Apache-2.0
/// Writes a sharded module as one safetensors file that Python's `safetensors` reads. Each rank
/// writes its own byte ranges from its shards: nothing is gathered and nothing copied.
#pragma once

#include <map>
#include <string>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// Writes every parameter and buffer under the module's names (of tied ones, the first) to `path`,
/// by way of `path`.partial, which is renamed when all ranks have written and synced. Buffers are
/// rank 0's. `metadata` goes into the header's "__metadata__". All ranks must see the same file
/// system.
/// @collective all ranks @blocks until all have written
/// @memory a weight in another memory order (transposed, channels last) is gathered, with a copy in
/// its logical order; all others need none
/// @throws Error kIo, on all ranks, with the first failing rank's path and reason; kUnsupported for
/// a dtype that the format does not know
void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace fsdp::checkpoint
