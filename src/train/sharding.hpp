// SPDX-License-Identifier: Apache-2.0
/// A configuration's words about sharding as the engine takes them.
#pragma once

#include <functional>
#include <memory>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"
#include "train/config.hpp"

namespace fsdp::train::detail {

/// Shards a model, a block a unit, and lets its blocks forget their activations if asked to.
/// `observer`: DebugOptions::observer.
/// @collective all ranks @throws Error as fully_shard() and DeviceMesh do
Sharded shard(const std::shared_ptr<models::LanguageModel>& model, const TrainConfig& config,
              const World& world, std::function<void(const trace::Event&)> observer = {});

}  // namespace fsdp::train::detail
