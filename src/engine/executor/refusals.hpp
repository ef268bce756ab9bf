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

/// @throws Error when `op` writes weights outside of a scope that takes writes, or runs under
/// autocast
void check_touch(const ModuleLayout& layout, std::span<const Hit> hits, const char* op,
                 bool takes_writes);

}  // namespace fsdp::engine
