// SPDX-License-Identifier: Apache-2.0
/// How an engine learns that the outermost backward has ended, or died, and how gradients reach it.
///
/// NOTE [The end of backward]
/// Autograd's own callbacks (Engine::queue_callback) belong to the graph task that queues them:
/// with a backward inside a backward (activation checkpointing) that is the inner one, and an
/// exception skips them without a word. So the process's autograd engine is replaced, by the
/// extension point that the Python binding uses, with one that hands everything on to it and
/// differs in this alone: around an outermost execute() it keeps a BackwardScope, and tells every
/// BackwardTarget that joined it how it ended. See docs/decisions/0007-end-of-backward.md. Python's
/// own backward() asks for its engine by name and passes by the replacement: there the binding runs
/// it inside of run_as_backward().
///
/// NOTE [Gradients are handed over twice]
/// Two things take a parameter's gradient, whichever comes first. Hooks of the tensor stay with it
/// when its values are replaced by others of another type. But a program in Python that hooks the
/// tensor itself takes their place: register_hook() clears them, and
/// register_post_accumulate_grad_hook() has one slot. So the node that accumulates has hooks as
/// well, which nobody clears. A tensor holds that node weakly, and set_data() to another type makes
/// a new one: GradientHooks keeps it, and renew() finds the new one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/touch/backward_target.hpp"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace fsdp::engine {

/// Installs the replacement, once per process.
void ensure_autograd_engine();

/// Runs `body`, which runs a backward, and tells the targets that joined it how it ended. Inside of
/// a backward: just runs it. @throws what `body` or a target throws
void run_as_backward(const std::function<void()>& body);

/// Id of the graph task that runs on this thread, -1 outside of backward.
int current_graph_task();

/// Has `target` told, by end_backward() or backward_died(), when the outermost backward that runs
/// now ends. Called inside of backward.
void join_backward(std::weak_ptr<BackwardTarget> target);

/// Whether a backward inside of the outermost one is under way. Called inside of backward.
bool is_inner_backward();

/// Appends the leaves without kTouchKey into which the backward that runs on this thread
/// accumulates, not those of backwards inside of it or around it. Called inside of backward. One
/// look at each node of its graph.
void append_plain_leaves(std::vector<at::Tensor>& leaves);

/// What hands the gradients of a module's tensor to a target, as long as it lives. Move-only. See
/// NOTE [Gradients are handed over twice].
class GradientHooks {
 public:
  GradientHooks(std::weak_ptr<BackwardTarget> target, int unit, int parameter, at::Tensor tensor);
  ~GradientHooks();
  GradientHooks(GradientHooks&&) noexcept;
  GradientHooks& operator=(GradientHooks&&) = delete;

  /// Hooks the node that accumulates now, if it is another one than before.
  void renew();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::engine
