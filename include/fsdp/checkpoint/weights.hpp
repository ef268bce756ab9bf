// SPDX-License-Identifier: Apache-2.0
/// Loads weights that nobody here has saved: published safetensors files, one or several, a GGUF
/// file, or any of them with LoRA adapters added. Each rank reads the bytes of its own shards and
/// no others.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// The module's name of a stored tensor; nothing for one that is not wanted.
using NameOf = std::function<std::optional<std::string>(const std::string& stored)>;

/// How stored names become those of the module, and what may be missing.
struct LoadWeightsOptions {
  NameOf name_of = {};       ///< default: the same name
  std::string adapter = {};  ///< directory of LoRA adapters to add, see archive::WeightSource
  /// Throw when a name is missing, unexpected or of another shape. Otherwise load what fits and
  /// return the lists.
  bool strict = true;
};

/// Loads the weights at `path`, which is what archive::WeightSource opens. Tensors are converted to
/// the dtype that they have here. The sums of a checkpoint's tensors are compared before any weight
/// is written, each by one rank; other files have none.
/// Returns the path, the entries and the lists; the rest is empty.
/// @collective all ranks @blocks until all have read
/// @memory as load(); the adapters
/// @throws Error, the same on all ranks: kNotFound when there is nothing; kMismatch with all
/// missing, unexpected and mismatched names; kCorrupt, kUnsupported, kIo
LoadReport load_weights(const std::string& path, Sharded& sharded,
                        const LoadWeightsOptions& options = {});

}  // namespace fsdp::checkpoint
