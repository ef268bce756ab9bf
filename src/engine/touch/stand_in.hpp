// SPDX-License-Identifier: Apache-2.0
/// Gradients of a rank that takes part in a branch without running it: zeros that can be told from
/// a gradient that is zero. See NOTE [Taking part].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace fsdp::engine {

/// Zeros of one element's memory. It has the touch key, so that the fallback sees what autograd
/// makes of it: with another stand-in one more, with a gradient that gradient.
at::Tensor make_stand_in(c10::IntArrayRef sizes, const at::TensorOptions& options);

/// Carries out aten::add.Tensor on the stack where both operands are stand-ins. Returns whether.
bool add_stand_ins(torch::jit::Stack& stack);

bool is_stand_in(const at::Tensor& gradient);

}  // namespace fsdp::engine
