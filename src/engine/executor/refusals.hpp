// SPDX-License-Identifier: Apache-2.0
/// What operators may not do with weights, shards and grads, and the errors that say what to do
/// instead.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/touch/touch.hpp"
#include "engine/unit/flat_parts.hpp"
#include "engine/unit/module_layout.hpp"

namespace fsdp::engine {

/// See TouchTarget. `parts`: of the unit's shard, or of its gradient.
[[noreturn]] void refuse_mixing(const Unit& unit, const FlatParts& parts, std::int64_t begin,
                                bool is_gradient, const char* op);
[[noreturn]] void refuse_grad_use(const ModuleLayout& layout, const Hit& hit, const char* op);
[[noreturn]] void refuse_unscaled_loss();

/// Whether a tensor that trains and is in no shard took the place of a weight. `left_out`: weights
/// that train and were not taken; `leaves`: of the graph; `ignored`: parameters that may be among
/// them. Returns one that is of another shape than each of these weights, undefined without one.
/// @throws Error kInvalidArgument for one of the same shape
at::Tensor check_leaves(const ModuleLayout& layout, std::span<const ModuleLayout::Index> left_out,
                        const std::vector<at::Tensor>& leaves,
                        const std::vector<at::Tensor>& ignored);

/// @throws Error when `op` writes weights outside of a scope that takes writes, or runs under
/// autocast
void check_touch(const ModuleLayout& layout, std::span<const Hit> hits, const char* op,
                 bool takes_writes);

}  // namespace fsdp::engine
