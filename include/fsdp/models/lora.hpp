// SPDX-License-Identifier: Apache-2.0
/// Low-rank adapters beside a model's projections. Hu et al., "LoRA: Low-Rank Adaptation of Large
/// Language Models" (2021).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/format/peft.hpp"
#include "fsdp/models/language_model.hpp"

namespace fsdp::models {

/// Freezes every parameter of the model, then puts an adapter beside each projection whose path is
/// one of the targets or ends with "." and one of them. Returns how many there are. Call it before
/// sharding.
/// @throws Error kInvalidArgument for a target that fits no projection, naming what there is, and
/// as AdaptableImpl::add_adapter()
std::int64_t add_adapters(LanguageModel& model, const format::LoRAConfig& lora);

/// Whether a parameter of that name belongs to an adapter.
bool is_adapter(std::string_view parameter);

/// PEFT's name of an adapter's parameter, and the way back; the latter leaves names that are no
/// adapter's as they are.
std::string peft_name(const ModelConfig& config, const std::string& parameter);
std::string parameter_of_peft(const ModelConfig& config, const std::string& stored);

/// What was trained, as PEFT reads it. `base` is where the frozen model came from.
std::string adapter_config_json(const ModelConfig& config, const format::LoRAConfig& lora,
                                const std::string& base);

}  // namespace fsdp::models
