// SPDX-License-Identifier: Apache-2.0
/// Draws text from saved weights, sharded over the ranks of a world: what `fsdp generate` runs on
/// each rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/comm/world.hpp"
#include "fsdp/format/peft.hpp"
#include "fsdp/models/model_config.hpp"

namespace fsdp::train {

/// What `fsdp generate` is asked for.
struct GenerationConfig {
  std::string path;     ///< weights and their config.json, as archive::WeightSource opens them
  std::string adapter;  ///< directory of LoRA adapters to add; empty: none
  std::vector<std::int64_t> prompt = {};
  std::int64_t tokens = 100;  ///< at most so many
  double temperature = 0.8;   ///< 0 takes the likeliest token
  std::int64_t top_k = 40;    ///< 0 for all
  double top_p = 1.0;
  std::uint64_t seed = 1;
  std::vector<std::int64_t> ends = {};  ///< tokens that end the text
  bool use_cache = true;
  int prefetch = 1;  ///< units gathered ahead of the one that computes
};

/// The model that the weights at a path are of. @throws Error kNotFound without weights or without
/// a config.json beside them; as models::read_config()
models::ModelConfig config_of(const std::string& path);

/// "bfloat16" or "float16" where all floating-point weights at a path are of that type, "float32"
/// for all others. @throws Error as archive::WeightSource
std::string weight_type_of(const std::string& path);

/// The adapters in a directory that PEFT wrote. @throws Error kNotFound without a description of
/// them; as format::parse_adapter_config()
format::LoRAConfig adapter_of(const std::string& directory);

/// Builds the model, loads each rank's shards, and draws. `on_token`, where it is given, is called
/// on rank 0 with each token as it is drawn. Returns the new tokens, the same on all ranks: they
/// are rank 0's.
/// @collective all ranks @memory the shards, the units that are gathered, and the cache of keys and
/// values on every rank
/// @throws Error as config_of(), checkpoint::load_weights() and models::generate()
std::vector<std::int64_t> generate(const GenerationConfig& config, const World& world,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace fsdp::train
