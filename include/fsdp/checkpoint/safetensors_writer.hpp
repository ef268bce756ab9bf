// SPDX-License-Identifier: Apache-2.0
/// Writes a sharded module as one safetensors file that Python's `safetensors` reads. Each rank
/// writes its own byte ranges: nothing is gathered and memory stays constant.
#pragma once

#include <map>
#include <string>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// Writes every parameter under the module's names (of tied ones, the first) to `path`, by way of a
/// temporary file beside it that is renamed when all ranks have written. `metadata` goes into the
/// header's "__metadata__". All ranks must see the same file system.
/// @collective all ranks @throws Error kIo, on all ranks, with path and reason
void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace fsdp::checkpoint
