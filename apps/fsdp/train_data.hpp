// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train/config.hpp"

namespace fsdp::apps {

/// Makes `config.data` what is trained on: text with a tokenizer becomes a token file in the cache,
/// token files must come from that tokenizer. Unless `is_vocab_given`, the vocabulary becomes the
/// tokenizer's, or the one that the token file names.
/// Without a tokenizer that was named, text for a published model takes the one beside its weights.
/// @throws Error kInvalidArgument for what does not go together or cannot be read, also when there
/// is none or it is not usable, unless tokens are to be bytes
void use_tokenizer(train::TrainConfig& config, bool is_vocab_given);

/// The text that the sample begins with must be seen by the model, all of it.
/// @throws Error kInvalidArgument
void check_prompt(const train::TrainConfig& config);

}  // namespace fsdp::apps
