// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "train/config.hpp"

namespace fsdp::train::detail {

/// Writes into config.save which log is this run's, so that lines of a run that ended before its
/// first checkpoint are known for its own. For rank 0, before the first step.
/// @throws Error kIo
void record_run(const TrainConfig& config);

}  // namespace fsdp::train::detail
