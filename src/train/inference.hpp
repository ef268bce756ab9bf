// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"

namespace fsdp::train::detail {

/// A model whose weights are there and do not learn.
struct Loaded {
  std::shared_ptr<models::LanguageModel> model;
  Sharded sharded;
};

/// Builds the model at `path`, sharded, a block a unit, and loads each rank's shards, with the
/// adapters of a directory added where one is named. @collective all ranks
/// @throws Error as config_of() and checkpoint::load_weights()
Loaded load_for_inference(const std::string& path, const std::string& adapter, int prefetch,
                          const World& world);

}  // namespace fsdp::train::detail
