// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fsdp/comm/world.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/sampler.hpp"
#include "fsdp/models/language_model.hpp"

namespace fsdp::train::detail {

/// Mean loss over `count` windows (at most all of them), evenly spaced and always the same,
/// whatever the number of ranks. Ranks share the windows out and run forward equally often, `batch`
/// windows at a time. @collective all ranks
double evaluate(models::LanguageModel& model, const World& world, const data::Corpus& corpus,
                const data::Windows& windows, std::int64_t count, std::int64_t batch);

}  // namespace fsdp::train::detail
