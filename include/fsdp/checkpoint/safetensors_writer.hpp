// SPDX-License-Identifier: Apache-2.0
/// Writes a sharded module as one safetensors file that Python's `safetensors` reads. Each rank
/// writes its own byte ranges from its shards: nothing is gathered and nothing copied.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// The file's name of one of the module's tensors; nothing for one that stays out.
using StoredNameOf = std::function<std::optional<std::string>(const std::string& name)>;

/// Writes every parameter and buffer under the module's names (of tied ones, the first) to `path`,
/// by way of a hidden file beside it with a name of its own, which is renamed when all ranks have
/// written and synced: of two saves to one `path` at once, the last one stays, whole. Buffers are
/// rank 0's. `metadata` goes into the header's "__metadata__". With `name_of`, those for which it
/// has a name, under that name. All ranks must see the same file system.
/// @collective all ranks @blocks until all have written
/// @memory a weight in another memory order (transposed, channels last) is gathered, with a copy in
/// its logical order; all others need none
/// @throws Error kIo, on all ranks, with the first failing rank's path and reason; kUnsupported for
/// a dtype that the format does not know
void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata = {},
                      const StoredNameOf& name_of = {});

}  // namespace fsdp::checkpoint
