// SPDX-License-Identifier: Apache-2.0
/// NOTE [two handles on one gradient]
/// A gradient lives in its shard's grad; the grad of the module's tensor has a placeholder. What a
/// program does to the latter (`net->zero_grad()`, `weight.mutable_grad() = g`) calls nobody. But
/// whoever uses a gradient asks the shard for it: LibTorch's optimizers, those of this library,
/// clipping, the engine itself. So shards have an autograd meta of their own, which lets the engine
/// look at the module's tensor first: what was reset there is reset here, what was assigned there
/// is refused. That costs the comparison of a pointer, and no walk over all parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "engine/touch/backward_target.hpp"

namespace fsdp::engine {

/// From here on `target` is told whenever anybody asks for the grad of `shard`, a leaf.
void install_grad_follower(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
                           const at::Tensor& shard);

}  // namespace fsdp::engine
