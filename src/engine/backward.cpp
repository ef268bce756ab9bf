// SPDX-License-Identifier: Apache-2.0
#include "engine/backward.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "engine/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// The outermost backward of one thread. See NOTE [The end of backward].
class BackwardScope {
 public:
  BackwardScope() {
    std::lock_guard lock(mutex_);
    open_.push_back(this);
    of_this_thread_ = this;
  }
  ~BackwardScope() {
    leave();
    for (const auto& joined : joined_) {
      if (auto engine = joined.lock()) {
        engine->backward_died();
      }
    }
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

  /// Backward went through to its end.
  void finish() {
    leave();
    while (!joined_.empty()) {
      // One that throws leaves the others to the destructor.
      auto engine = joined_.front().lock();
      joined_.erase(joined_.begin());
      if (engine != nullptr) {
        engine->end_backward();
      }
    }
  }

  /// Backward runs on the calling thread, but for devices' threads and very deep nesting: those
  /// join the scope that was opened last.
  static void join(std::weak_ptr<Engine> engine) {
    std::lock_guard lock(mutex_);
    BackwardScope* scope = of_this_thread_;
    if (scope == nullptr && !open_.empty()) {
      scope = open_.back();
    }
    FSDP_ASSERT(scope != nullptr, "a gradient arrived outside of backward");
    scope->joined_.push_back(std::move(engine));
  }

 private:
  void leave() {
    std::lock_guard lock(mutex_);
    std::erase(open_, this);
    of_this_thread_ = nullptr;
  }

  static inline std::mutex mutex_;
  static inline std::vector<BackwardScope*> open_;
  static inline thread_local BackwardScope* of_this_thread_ = nullptr;
  std::vector<std::weak_ptr<Engine>> joined_;
};

/// Marks the outermost backward and leaves the work to the engine that was there before. It must be
/// that one: LibTorch starts an engine's threads once per process, so a second engine has none.
class AutogradEngine : public torch::autograd::Engine {
 public:
  explicit AutogradEngine(torch::autograd::Engine& inner) : inner_(inner) {
    inner_.initialize_device_threads_pool();
  }
  ~AutogradEngine() override { stop(); }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph,
                                         bool create_graph,
                                         bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    const auto run = [&] {
      return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    };
    if (current_graph_task() >= 0) {
      return run();  // a backward inside a backward
    }
    BackwardScope scope;
    torch::autograd::variable_list results = run();
    scope.finish();
    return results;
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task,
      c10::intrusive_ptr<torch::autograd::Node> root,
      torch::autograd::InputBuffer&& inputs) override {
    return inner_.execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner_.make_anomaly_metadata();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return inner_.get_default_saved_variable_hooks();
  }

 private:
  torch::autograd::Engine& inner_;
};

class HandOver : public torch::autograd::PostAccumulateGradHook {
 public:
  HandOver(std::weak_ptr<Engine> engine, int unit, int parameter)
      : engine_(std::move(engine)), unit_(unit), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    if (auto engine = engine_.lock()) {
      engine->gradient(unit_, parameter_, tensor);
    }
  }

 private:
  std::weak_ptr<Engine> engine_;
  int unit_;
  int parameter_;
};

}  // namespace

void ensure_autograd_engine() {
  static const bool is_installed = [] {
    // Never destroyed: autograd's threads may outlive static objects.
    static auto* engine = new AutogradEngine(torch::autograd::Engine::get_default_engine());
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *engine; });
    return true;
  }();
  (void)is_installed;
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

void join_backward(std::weak_ptr<Engine> engine) { BackwardScope::join(std::move(engine)); }

void install_gradient_hooks(std::weak_ptr<Engine> engine,
                            int unit,
                            int parameter,
                            const at::Tensor& tensor) {
  // Takes the placeholder out of the tensor's grad before autograd accumulates into it. By
  // register_hook, as users do: it keeps a list, where the lower-level hooks replace each other. A
  // tensor that is frozen now may train later.
  const bool requires_grad = tensor.requires_grad();
  tensor.requires_grad_(true);
  tensor.register_hook([impl = tensor.unsafeGetTensorImpl()](const at::Tensor&) -> void {
    at::Tensor& grad = impl->mutable_grad();  // the tensor owns this hook
    if (grad.defined() && grad.key_set().has(kTouchKey)) {
      grad.reset();
    }
  });
  tensor.requires_grad_(requires_grad);
  torch::autograd::impl::set_post_acc_grad_hooks(
      tensor, std::make_unique<HandOver>(std::move(engine), unit, parameter));
}

void remove_gradient_hooks(const at::Tensor& tensor) {
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, nullptr);
}

}  // namespace fsdp::engine
