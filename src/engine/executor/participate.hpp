// SPDX-License-Identifier: Apache-2.0
/// Taking part in the collectives of units that this rank does not run in a step.
///
/// NOTE [Taking part]
/// The ranks that run a branch gather its units at their touches in forward, gather them again in
/// backward, and reduce them as soon as their gradients are there. A rank that leaves the branch
/// out does the same at the same places: participate() touches the units where it stands in
/// forward, and leaves one autograd node for each touch. Autograd runs nodes that are ready in the
/// reverse order of their making, so these run where the branch's own would; each touches its units
/// and hands stand-ins to the usual accumulation, which knows how many uses of a weight are still
/// to come. Stand-ins are zeros to the sum and no gradients to the optimizer: where no rank has
/// another one, the parameter was not used and gets none. See stand_in.hpp.
///
/// What cannot be known from here is whether the branch's backward takes weights at all: the first
/// layer's does not when its input needs no gradient. So the rule for optional units is that the
/// arrival of a gradient is a touch, on every rank: see Executor::is_touched_by_gradient(). And
/// because ranks touch these units unequally often, they are not freed by count: see
/// Schedule::set_optional().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "engine/unit/unit.hpp"

namespace fsdp::engine {

class Engine;

/// Returns a scalar zero whose backward delivers stand-ins to the selected parameters.
/// See Sharded::participate().
at::Tensor participate(const std::shared_ptr<Engine>& engine,
                       const std::function<bool(const Unit&, const Parameter&)>& is_selected);

}  // namespace fsdp::engine
