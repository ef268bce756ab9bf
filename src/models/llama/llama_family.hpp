// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/architecture.hpp"

namespace fsdp::models::detail {

extern const Architecture kLlamaFamily;

/// A model of Llama's row, or of a relative's.
std::shared_ptr<LanguageModel> make_llama(const ModelConfig& config);

/// The part of a configuration that Llama and its relatives share; they are all built by it.
LlamaConfig& llama_part(ModelConfig& config);
const LlamaConfig& llama_part(const ModelConfig& config);

}  // namespace fsdp::models::detail
