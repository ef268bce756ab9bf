// SPDX-License-Identifier: Apache-2.0
/// How an engine learns that the outermost backward has ended, or died, and how gradients reach it.
///
/// NOTE [The end of backward]
/// Autograd's own callbacks (Engine::queue_callback) belong to the graph task that queues them:
/// with a backward inside a backward (activation checkpointing) that is the inner one, and an
/// exception skips them without a word. So the process's autograd engine is replaced, by the
/// extension point that the Python binding uses, with one that hands everything on to it and
/// differs in this alone: around an outermost execute() it keeps a BackwardScope, and tells every
/// BackwardTarget that joined it how it ended. See docs/decisions/0007-end-of-backward.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/touch/backward_target.hpp"

namespace fsdp::engine {

/// Installs the replacement, once per process.
void ensure_autograd_engine();

/// Id of the graph task that runs on this thread, -1 outside of backward.
int current_graph_task();

/// Has `target` told, by end_backward() or backward_died(), when the outermost backward that runs
/// now ends. Called inside of backward.
void join_backward(std::weak_ptr<BackwardTarget> target);

/// The leaves into which the outermost backward that runs now accumulates, from its graph; not
/// those of backwards inside of it. Called on the thread that called backward(). Takes time in the
/// number of nodes.
std::vector<at::Tensor> backward_leaves();

/// Installs on a module's tensor what hands its gradients to `target`.
void install_gradient_hooks(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
                            const at::Tensor& tensor);
/// Takes them off again.
void remove_gradient_hooks(const at::Tensor& tensor);

}  // namespace fsdp::engine
