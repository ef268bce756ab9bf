// SPDX-License-Identifier: Apache-2.0
/// What all ranks must agree on before the first payload moves.
#pragma once

#include <string>
#include <vector>

#include "engine/unit/unit.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::engine {

/// Compares units, names, shapes, strides, dtypes and options over all ranks.
/// @collective all ranks
/// @throws Error kMismatch, with the same text on all ranks, naming the first line that differs
void agree_on_manifest(comm::Job& job, const std::vector<Unit>& units, const Options& options,
                       bool transport_takes_device);

/// Compares the bits of all parameters over all ranks.
/// @collective all ranks @throws Error kMismatch naming the first parameter that differs
void check_equal_weights(comm::Job& job, const std::vector<Unit>& units);

}  // namespace fsdp::engine
