// SPDX-License-Identifier: Apache-2.0
/// The files of PEFT, Hugging Face's library of adapters: `adapter_config.json`, and the names of
/// tensors in `adapter_model.safetensors`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::format {

/// The two files of a directory of adapters, under the names that PEFT reads.
inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
/// What stands before the path of a projection in the file.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

/// A set of low-rank adapters.
struct LoRAConfig {
  std::int64_t rank = 0;                  ///< 0: none
  double alpha = 16;                      ///< what adapters add is multiplied by alpha / rank
  std::vector<std::string> targets = {};  ///< paths of projections, or what they end with
  /// Whether the adapted weights are [in, out], as GPT-2's.
  bool is_transposed = false;
  double dropout = 0;     ///< of what goes into an adapter, while training
  std::string base = {};  ///< the model that they belong to, as written by who trained them

  double scale() const { return alpha / static_cast<double>(rank); }
};

/// Reads `adapter_config.json`; errors call it `path`.
/// @throws Error kCorrupt for a text that is none; kUnsupported naming every field that this
/// library does not know and every value that it cannot follow
LoRAConfig parse_adapter_config(const std::string& path, const std::string& text);

/// The text that PEFT reads.
std::string to_json(const LoRAConfig& lora);

}  // namespace fsdp::format
