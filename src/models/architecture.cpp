// SPDX-License-Identifier: Apache-2.0
#include "models/architecture.hpp"

#include <array>
#include <variant>

#include "models/gpt/gpt_family.hpp"
#include "models/llama/llama_family.hpp"
#include "models/llama/relatives.hpp"

namespace fsdp::models::detail {
namespace {

constexpr std::array<const Architecture*, std::variant_size_v<ModelConfig>> kTable = {
    &kGptFamily, &kLlamaFamily, &kMistralFamily, &kQwen2Family, &kQwen3Family,
};

}  // namespace

std::span<const Architecture* const> architectures() { return kTable; }

const Architecture& architecture_of(const ModelConfig& config) { return *kTable[config.index()]; }

}  // namespace fsdp::models::detail
