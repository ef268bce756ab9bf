// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fsdp/comm/world.hpp"
#include "fsdp/models/language_model.hpp"
#include "train/dataset.hpp"

namespace fsdp::train::detail {

/// Mean loss in nats, over all targets that count in `count` rows for validation (at most all of
/// them), evenly spaced and always the same, whatever the number of ranks. Ranks share the rows out
/// and run forward equally often, `batch` rows at a time. @collective all ranks
double evaluate(models::LanguageModel& model, const World& world, const Dataset& data,
                std::int64_t count, std::int64_t batch);

}  // namespace fsdp::train::detail
