// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train/config.hpp"

namespace fsdp::apps {

/// Makes `config.data` what is trained on: text with a tokenizer becomes a token file in the cache,
/// token files must come from that tokenizer. Unless `is_vocab_given`, the vocabulary becomes the
/// tokenizer's, or the one that the token file names.
/// @throws Error kInvalidArgument for what does not go together or cannot be read
void use_tokenizer(train::TrainConfig& config, bool is_vocab_given);

}  // namespace fsdp::apps
