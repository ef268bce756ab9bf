// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/backward.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/touch/saved_tensors.hpp"
#include "engine/touch/stand_in.hpp"
#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// An outermost backward. See NOTE [The end of backward]. The threads that work for it find it
/// through c10's thread-local debug info, which autograd carries to all of them: devices' threads
/// have no other link to the caller, nor have the threads that take over at deep nesting.
class BackwardScope {
 public:
  explicit BackwardScope(const torch::autograd::edge_list& roots)
      : joined_(std::make_shared<Joined>()), guard_(kKind, joined_) {
    joined_->roots = &roots;
  }
  ~BackwardScope() {
    for (const auto& joined : joined_->take()) {
      if (auto target = joined.lock()) {
        target->backward_died();
      }
    }
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

  /// Backward went through to its end.
  void finish() {
    auto targets = joined_->take();
    while (!targets.empty()) {
      const std::weak_ptr<BackwardTarget> next = targets.front();
      targets.erase(targets.begin());
      if (auto target = next.lock()) {
        try {
          target->end_backward();
        } catch (...) {
          joined_->targets = std::move(targets);  // the others to the destructor
          throw;
        }
      }
    }
  }

  static void join(std::weak_ptr<BackwardTarget> target) {
    Joined& joined = current();
    std::lock_guard lock(joined.mutex);
    joined.targets.push_back(std::move(target));
  }
  static const torch::autograd::edge_list& roots() { return *current().roots; }

 private:
  struct Joined : c10::DebugInfoBase {
    const torch::autograd::edge_list* roots = nullptr;  ///< the caller's
    std::mutex mutex;
    std::vector<std::weak_ptr<BackwardTarget>> targets;
    std::vector<std::weak_ptr<BackwardTarget>> take() {
      std::lock_guard lock(mutex);
      return std::exchange(targets, {});
    }
  };

  static Joined& current() {
    auto* joined = dynamic_cast<Joined*>(c10::ThreadLocalDebugInfo::get(kKind));
    FSDP_ASSERT(joined != nullptr, "a gradient arrived outside of backward");
    return *joined;
  }

  static constexpr std::string_view kName = "fsdp backward";
  static constexpr c10::DebugInfoKind kKind{&kName};
  std::shared_ptr<Joined> joined_;
  c10::DebugInfoGuard guard_;
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
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    const auto run = [&] {
      return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    };
    if (current_graph_task() >= 0) {
      return run();  // a backward inside a backward
    }
    BackwardScope scope(roots);
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
    SavedTensorPolicy* policy = SavedTensorScope::current();
    return policy != nullptr ? policy->make_hooks() : inner_.get_default_saved_variable_hooks();
  }

 private:
  torch::autograd::Engine& inner_;
};

class HandOver : public torch::autograd::PostAccumulateGradHook {
 public:
  /// `is_stand_in`: whether what is accumulated next is one, from a hook that runs before this.
  HandOver(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
           std::shared_ptr<const bool> is_stand_in)
      : target_(std::move(target)),
        unit_(unit),
        parameter_(parameter),
        is_stand_in_(std::move(is_stand_in)) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    if (auto target = target_.lock()) {
      target->gradient(unit_, parameter_, tensor, *is_stand_in_);
    }
  }

 private:
  std::weak_ptr<BackwardTarget> target_;
  int unit_;
  int parameter_;
  std::shared_ptr<const bool> is_stand_in_;
};

}  // namespace

void ensure_autograd_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: autograd's threads may outlive static objects.
    static auto* engine = new AutogradEngine(torch::autograd::Engine::get_default_engine());
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *engine; });
  });
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

void join_backward(std::weak_ptr<BackwardTarget> target) { BackwardScope::join(std::move(target)); }

std::vector<at::Tensor> backward_leaves() {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> ahead;
  const auto go_on = [&](const torch::autograd::edge_list& edges) {
    for (const torch::autograd::Edge& edge : edges) {
      if (edge.function && seen.insert(edge.function.get()).second) {
        ahead.push_back(edge.function.get());
      }
    }
  };
  for (go_on(BackwardScope::roots()); !ahead.empty();) {
    torch::autograd::Node* node = ahead.back();
    ahead.pop_back();
    if (const auto* end = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(end->variable);
    }
    go_on(node->next_edges());
  }
  return leaves;
}

void install_gradient_hooks(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
                            const at::Tensor& tensor) {
  // Before autograd accumulates, the placeholder has to go. By register_hook, as users do: it keeps
  // a list, where the lower-level hooks replace each other. A tensor that is frozen now may train
  // later.
  const auto stands_in = std::make_shared<bool>(false);
  const bool requires_grad = tensor.requires_grad();
  tensor.requires_grad_(true);
  tensor.register_hook([target, unit, parameter, stands_in](const at::Tensor& gradient) -> void {
    *stands_in = is_stand_in(gradient);
    if (const auto told = target.lock()) {
      told->expect_gradient(unit, parameter);
    }
  });
  tensor.requires_grad_(requires_grad);
  torch::autograd::impl::set_post_acc_grad_hooks(
      tensor, std::make_unique<HandOver>(std::move(target), unit, parameter, stands_in));
}

void remove_gradient_hooks(const at::Tensor& tensor) {
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, nullptr);
}

}  // namespace fsdp::engine
