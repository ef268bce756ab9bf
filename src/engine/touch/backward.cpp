// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/backward.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host_language.hpp"
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
  struct Joined : c10::DebugInfoBase {
    std::atomic<int> inner = 0;  ///< backwards inside of this one that run now
    std::mutex mutex;
    std::vector<std::weak_ptr<BackwardTarget>> targets;
    std::vector<std::weak_ptr<BackwardTarget>> take() {
      std::lock_guard lock(mutex);
      return std::exchange(targets, {});
    }
  };

 public:
  BackwardScope() : joined_(std::make_shared<Joined>()), guard_(kKind, joined_) {}
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

  static bool is_inner() { return current().inner > 0; }

  /// A backward inside of this one, while it lives. Without this one, as for functions that
  /// autograd runs by itself, it counts for nothing.
  class Inner {
   public:
    Inner() : outer_(find()) { add(1); }
    ~Inner() { add(-1); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    void add(int count) const {
      if (outer_ != nullptr) {
        outer_->inner += count;
      }
    }
    Joined* outer_;
  };

  static void join(std::weak_ptr<BackwardTarget> target) {
    Joined& joined = current();
    std::lock_guard lock(joined.mutex);
    joined.targets.push_back(std::move(target));
  }

 private:
  static Joined* find() { return dynamic_cast<Joined*>(c10::ThreadLocalDebugInfo::get(kKind)); }
  static Joined& current() {
    auto* joined = find();
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
    torch::autograd::variable_list results;
    run_as_backward([&] {
      results = inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    });
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

/// A gradient on its way into one tensor. Its node's calls come one after the other.
class Arrival {
 public:
  Arrival(std::weak_ptr<BackwardTarget> target, int unit, int parameter)
      : target_(std::move(target)), unit_(unit), parameter_(parameter) {}

  /// It is about to be accumulated. The first call of a graph task sees what autograd brought,
  /// later ones what hooks made of it.
  void announce(const at::Tensor& gradient) {
    if (const int task = current_graph_task(); std::exchange(seen_in_, task) != task) {
      is_stand_in_ = is_stand_in(gradient);
    }
    at_boundary([&](BackwardTarget& target) { target.expect_gradient(unit_, parameter_); });
  }
  /// It is in the tensor's grad, unless it has been taken already.
  void take(const at::Tensor& tensor) {
    at_boundary(
        [&](BackwardTarget& target) { target.gradient(unit_, parameter_, tensor, is_stand_in_); });
  }

 private:
  /// Autograd carries what is thrown here to whoever called backward().
  template <class Tell>
  void at_boundary(Tell tell) const {
    try {
      if (const auto target = target_.lock()) {
        tell(*target);
      }
    } catch (const Error& error) {
      base::raise_for_host(error);
      throw;
    }
  }

  std::weak_ptr<BackwardTarget> target_;
  int unit_;
  int parameter_;
  int seen_in_ = -1;  ///< graph task
  bool is_stand_in_ = false;
};

class HandOver : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit HandOver(std::shared_ptr<Arrival> arrival) : arrival_(std::move(arrival)) {}
  void operator()(const torch::autograd::Variable& tensor) override { arrival_->take(tensor); }

 private:
  std::shared_ptr<Arrival> arrival_;
};

/// The same two as hooks of the node that accumulates.
class NodeAnnouncement : public torch::autograd::FunctionPreHook {
 public:
  explicit NodeAnnouncement(std::shared_ptr<Arrival> arrival) : arrival_(std::move(arrival)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (grads.front().defined()) {
      arrival_->announce(grads.front());
    }
    return grads;
  }

 private:
  std::shared_ptr<Arrival> arrival_;
};

class NodeHandOver : public torch::autograd::FunctionPostHook {
 public:
  NodeHandOver(std::shared_ptr<Arrival> arrival, c10::TensorImpl* tensor)
      : arrival_(std::move(arrival)), tensor_(tensor) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    arrival_->take(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(tensor_)));
    return outputs;
  }

 private:
  std::shared_ptr<Arrival> arrival_;
  c10::TensorImpl* tensor_;  ///< the node owns it, and this
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

void run_as_backward(const std::function<void()>& body) {
  if (current_graph_task() >= 0) {
    const BackwardScope::Inner inner;  // a backward inside a backward
    body();
    return;
  }
  BackwardScope scope;
  body();
  scope.finish();
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

void join_backward(std::weak_ptr<BackwardTarget> target) { BackwardScope::join(std::move(target)); }

bool is_inner_backward() { return BackwardScope::is_inner(); }

void append_plain_leaves(std::vector<at::Tensor>& leaves) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  FSDP_ASSERT(nodes != nullptr, "there is no backward on this thread");
  for (torch::autograd::Node* node : *nodes) {
    if (node->sequence_nr() != std::numeric_limits<std::uint64_t>::max()) {
      continue;  // only ends of a graph come before all that operators have recorded
    }
    const auto* end = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (end != nullptr && !end->variable.key_set().has(kTouchKey)) {
      leaves.push_back(end->variable);
    }
  }
}

struct GradientHooks::State {
  at::Tensor tensor;
  std::shared_ptr<Arrival> arrival;
  c10::intrusive_ptr<torch::autograd::Node> node;
};

GradientHooks::GradientHooks(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
                             at::Tensor tensor)
    : state_(std::make_unique<State>()) {
  state_->tensor = std::move(tensor);
  state_->arrival = std::make_shared<Arrival>(std::move(target), unit, parameter);
  renew();
  // Before autograd accumulates, the placeholder has to go. By register_hook, as users do: it keeps
  // a list, where the lower-level hooks replace each other.
  const bool requires_grad = state_->tensor.requires_grad();
  state_->tensor.requires_grad_(true);
  state_->tensor.register_hook([arrival = state_->arrival](const at::Tensor& gradient) -> void {
    arrival->announce(gradient);
  });
  state_->tensor.requires_grad_(requires_grad);
  torch::autograd::impl::set_post_acc_grad_hooks(state_->tensor,
                                                 std::make_unique<HandOver>(state_->arrival));
}

GradientHooks::GradientHooks(GradientHooks&&) noexcept = default;

GradientHooks::~GradientHooks() {
  if (state_ != nullptr) {
    torch::autograd::impl::set_post_acc_grad_hooks(state_->tensor, nullptr);
  }
}

void GradientHooks::renew() {
  const at::Tensor& tensor = state_->tensor;
  const bool requires_grad = tensor.requires_grad();
  tensor.requires_grad_(true);  // one that is frozen now may train later
  auto node = torch::autograd::impl::grad_accumulator(tensor);
  tensor.requires_grad_(requires_grad);
  if (node == state_->node) {
    return;
  }
  state_->node = std::move(node);
  state_->node->add_pre_hook(std::make_unique<NodeAnnouncement>(state_->arrival));
  state_->node->add_post_hook(
      std::make_unique<NodeHandOver>(state_->arrival, tensor.unsafeGetTensorImpl()));
}

}  // namespace fsdp::engine
