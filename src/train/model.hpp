// SPDX-License-Identifier: Apache-2.0
/// The model of a run: built, filled with published weights, described by files.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"
#include "train/config.hpp"

namespace fsdp::train::detail {

/// With weights that the seed decides, and with adapters where the run trains them.
std::shared_ptr<models::LanguageModel> make_model(const TrainConfig& config);

/// Loads config.init, and config.adapter: into the adapters that learn, else added to the weights.
/// @collective all ranks @throws Error kMismatch when they do not fit the model
void load_initial(const TrainConfig& config, Sharded& sharded);

/// Whether a file of that name beside weights is read as part of their tokenizer.
bool is_of_tokenizer(const std::string& name);

/// Files that belong beside the model's weights: config.json, the tokenizer (of config.tokenizer,
/// else of config.init), and with adapters adapter_config.json.
std::map<std::string, std::string> model_documents(const TrainConfig& config);
/// The same beside adapters alone.
std::map<std::string, std::string> adapter_documents(const TrainConfig& config);

}  // namespace fsdp::train::detail
