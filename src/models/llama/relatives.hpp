// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/architecture.hpp"

namespace fsdp::models::detail {

extern const Architecture kMistralFamily, kQwen2Family, kQwen3Family;

}  // namespace fsdp::models::detail
