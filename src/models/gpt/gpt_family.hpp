// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/architecture.hpp"

namespace fsdp::models::detail {

extern const Architecture kGptFamily;

std::shared_ptr<LanguageModel> make_gpt(const ModelConfig& config);

}  // namespace fsdp::models::detail
