// SPDX-License-Identifier: Apache-2.0
/// Deferred tensors as the touch fallback and the engine see them.
/// See NOTE [Deferred initialisation].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fsdp::engine {

/// Deals with an operator if it is made in a DeferredInit scope or takes deferred tensors; returns
/// false when the caller has to run it, on tensors that have memory then.
bool defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Whether the tensor comes from a DeferredInit scope, filled since or not.
bool was_deferred(const at::Tensor& tensor);

/// The tensor's values: itself where it has memory, else filled for the caller and not kept.
at::Tensor values_of(const at::Tensor& tensor);

}  // namespace fsdp::engine
