// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "train/config.hpp"

namespace fsdp::apps {

/// What the command line says of data.
struct DataFlags {
  std::vector<std::string> data = {};        ///< --data: paths and patterns
  std::vector<double> weights = {};          ///< --data-weights: one for each, or none
  std::vector<std::string> validation = {};  ///< --val-data
};

/// Makes `config.data` and `config.validation` what is trained on: text with a tokenizer becomes a
/// token file in the cache, records become a sample file there, and token files must come from that
/// tokenizer. Unless `is_vocab_given`, the vocabulary becomes the tokenizer's, or the one that a
/// token file names.
/// Without a tokenizer that was named, text for a published model takes the one beside its weights.
/// @throws Error kInvalidArgument for what does not go together or cannot be read, also when there
/// is none or it is not usable, unless tokens are to be bytes
void use_data(train::TrainConfig& config, const DataFlags& flags, bool is_vocab_given);

/// The text that the sample begins with must be seen by the model, all of it.
/// @throws Error kInvalidArgument
void check_prompt(const train::TrainConfig& config);

/// The files that a path or a pattern of the shell names. `option` is what it was given by.
/// @throws Error kInvalidArgument when there is none
std::vector<std::string> expanded(const std::string& option, const std::string& pattern);

}  // namespace fsdp::apps
