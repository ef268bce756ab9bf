// SPDX-License-Identifier: Apache-2.0
/// The fields of `config.json` that Llama and its relatives have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fsdp/models/model_config.hpp"
#include "models/architecture.hpp"

namespace fsdp::models::detail {

/// Sizes, rope, activation and head: all but what decides biases, norms of heads and windows.
LlamaConfig read_common_fields(format::detail::Fields& fields);
/// The same, written.
nlohmann::ordered_json write_common_fields(const LlamaConfig& config);

/// `layer_types` may only say once more which blocks have a window.
void must_have_layer_types(format::detail::Fields& fields, const LlamaConfig& config);

/// The inner width keeps its proportion, in steps of 8; each query head gets a key head.
ModelConfig resized_llama(const ModelConfig& model, std::int64_t width, std::int64_t heads);

inline constexpr const char* kLlamaComputed[] = {".rotary_emb.inv_freq"};
inline constexpr const char* kLlamaTables[] = {"*embed_tokens.weight"};
inline constexpr const char* kLlamaAdapterTargets[] = {"q_proj", "v_proj"};

/// A row of the table of architectures, with what Llama and its relatives have in common.
constexpr Architecture llama_row(const char* type, const char* name,
                                 ModelConfig (*read)(format::detail::Fields&),
                                 nlohmann::ordered_json (*write)(const ModelConfig&),
                                 const std::vector<Preset>& (*presets)()) {
  return {.model_type = type,
          .transformers_class = name,
          .read = read,
          .write = write,
          .presets = presets,
          .resized = resized_llama,
          .make = make_llama,
          .published_prefix = "",
          .computed = kLlamaComputed,
          .tables = kLlamaTables,
          .adapter_targets = kLlamaAdapterTargets,
          .is_transposed = false};
}

}  // namespace fsdp::models::detail
