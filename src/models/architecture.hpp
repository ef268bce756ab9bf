// SPDX-License-Identifier: Apache-2.0
/// What the library has to know of a family of models, and the table of all of them. A family is a
/// folder of this module, an alternative of ModelConfig, and a row of the table.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "fsdp/models/model_config.hpp"

namespace fsdp::format::detail {
class Fields;
}

namespace fsdp::models {

class LanguageModel;

namespace detail {

struct Preset {
  std::string name;
  ModelConfig config;
};

using Names = std::span<const char* const>;

struct Architecture {
  const char* model_type;          ///< Hugging Face's: decides which row reads a config.json
  const char* transformers_class;  ///< the only entry that "architectures" may have
  /// Fields of config.json that this family has alone; the common ones are taken care of.
  ModelConfig (*read)(format::detail::Fields& fields);
  nlohmann::ordered_json (*write)(const ModelConfig& config);
  const std::vector<Preset>& (*presets)();
  /// Another width and number of heads, and what follows from them.
  ModelConfig (*resized)(const ModelConfig& config, std::int64_t width, std::int64_t heads);
  std::shared_ptr<LanguageModel> (*make)(const ModelConfig& config);

  const char* published_prefix;  ///< what published names have before ours, the head's excepted
  Names computed;         ///< ends of names of stored tensors that are computed here, not loaded
  Names tables;           ///< patterns of matrices whose rows are tokens or positions
  Names adapter_targets;  ///< projections that adapters are put beside unless others are named
  bool is_transposed;     ///< projections are [in, out]: PEFT's fan_in_fan_out
};

/// In the order of ModelConfig's alternatives.
std::span<const Architecture* const> architectures();
const Architecture& architecture_of(const ModelConfig& config);

}  // namespace detail
}  // namespace fsdp::models
