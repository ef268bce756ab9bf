// SPDX-License-Identifier: Apache-2.0
/// Runs a Schedule against a cost model instead of a machine: how long a training step takes, what
/// is exposed, how many units are live. The tests of the schedule use it; in the library it stands
/// for the planner, which will choose units and prefetching by it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.hpp"

namespace fsdp::schedule {

/// What one unit costs, in any one unit of time.
struct UnitCost {
  double forward = 0;
  double backward = 0;
  double gather = 0;
  double reduce = 0;
};

/// What one step took, in the unit of time of UnitCost.
struct StepTimes {
  double total = 0;           ///< of the step
  double compute = 0;         ///< of it, computing
  double exposed_gather = 0;  ///< of it, waiting for an all-gather
  double exposed_reduce = 0;  ///< of it, waiting for a reduce-scatter
  std::int64_t gathers = 0;
  std::int64_t reduces = 0;
  int peak_live = 0;  ///< units in slots at once
};

/// Runs `steps` training steps of a chain of units: forward in the order of `costs`, backward in
/// reverse. Gathers share one lane, reduce-scatters another, as on two NCCL communicators; each
/// lane is first in, first out. Returns one entry per step.
std::vector<StepTimes> run_chain(const Config& config, const std::vector<UnitCost>& costs,
                                 int steps);

}  // namespace fsdp::schedule
