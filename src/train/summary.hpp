// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"
#include "train/config.hpp"
#include "train/dataset.hpp"

namespace fsdp::train::detail {

/// What a run is about, in a few lines: data, model, ranks and units, batch, and the promise of
/// memory by kind.
std::string summary(const TrainConfig& config, const Dataset& data, const Sharded& sharded);

/// Draws the text of the end: `config.sample` tokens after the prompt. What a tokenizer knows comes
/// back as text, see tokens::printable(); other token files come back as numbers.
/// @collective all ranks
std::string sample_text(models::LanguageModel& model, const TrainConfig& config,
                        const Dataset& data, c10::Device device);

/// Writes model.safetensors and the model's documents into `config.out`, or with adapters those
/// alone, as PEFT reads them, and returns the path of the weights.
/// @collective all ranks @throws Error kIo
std::string save(const TrainConfig& config, const Sharded& sharded);
/// The path of those weights.
std::string saved_path(const TrainConfig& config);

}  // namespace fsdp::train::detail
