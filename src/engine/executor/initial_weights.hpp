// SPDX-License-Identifier: Apache-2.0
/// How all ranks come to start from the same weights.
#pragma once

#include "engine/executor/gradients.hpp"
#include "engine/executor/residency.hpp"
#include "engine/unit/module_layout.hpp"
#include "fsdp/engine/options.hpp"

namespace fsdp::engine {

/// Makes each unit whole once more, in memory that the gradients will need, with the values that
/// rank 0 has or all ranks have alike, and lets `residency` take what it keeps of it.
/// @collective all ranks
void hand_over_weights(const ModuleLayout& layout, comm::Transport& world, InitialWeights initial,
                       const Gradients& gradients, Residency& residency);

}  // namespace fsdp::engine
