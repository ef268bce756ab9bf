// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/recompute.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/touch/backward.hpp"
#include "engine/touch/saved_tensors.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {
thread_local SavedTensorPolicy* current_policy = nullptr;
}

SavedTensorScope::SavedTensorScope(SavedTensorPolicy& policy)
    : outer_(std::exchange(current_policy, &policy)) {}
SavedTensorScope::~SavedTensorScope() { current_policy = outer_; }
SavedTensorPolicy* SavedTensorScope::current() { return current_policy; }

namespace detail {

// NOTE [Checkpoints by hooks on saved tensors]
// In forward the graph is recorded as always, but each tensor that autograd would save inside of
// `fn` is dropped; its hooks keep the frame and a number. The first of them that backward asks for
// has `fn` run again, whose saved tensors, in the same order, are the answers; each is given away
// when it is asked for. The graph of the second run is thrown away: gradients flow through the
// first one, so everything that autograd offers works, and a post-accumulate hook fires as often as
// without checkpoints. The frame's own inputs are saved as autograd saves them, hence through the
// policy of a checkpoint around this one.

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

/// The default generators that `inputs` may draw from, and their states.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<at::Tensor>& inputs) {
    std::vector<c10::Device> devices = {c10::Device(c10::kCPU)};
    for (const at::Tensor& input : inputs) {
      if (input.defined() && std::ranges::find(devices, input.device()) == devices.end()) {
        devices.push_back(input.device());
      }
    }
    for (const c10::Device& device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }

  /// Sets the generators to these states; returns those that they had.
  RandomStates restore() const {
    RandomStates before;
    for (const auto& [of, state] : states_) {
      at::Generator generator = of;
      std::lock_guard lock(generator.mutex());
      before.states_.emplace_back(generator, generator.get_state());
      generator.set_state(state);
    }
    return before;
  }

  /// Whether nothing was drawn since.
  bool are_current() const {
    for (const auto& [of, state] : states_) {
      at::Generator generator = of;
      std::lock_guard lock(generator.mutex());
      if (!generator.get_state().equal(state)) {
        return false;
      }
    }
    return true;
  }

 private:
  RandomStates() = default;
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// What the two runs must agree in.
std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes() << " on " << tensor.device();
  return text.str();
}

}  // namespace

class RecomputedFrame : public SavedTensorPolicy,
                        public std::enable_shared_from_this<RecomputedFrame> {
 public:
  RecomputedFrame(const std::vector<at::Tensor>& inputs, RecomputeScope::Rerun rerun)
      : rerun_(std::move(rerun)), random_(inputs) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
    }
  }

  std::unique_ptr<SavedVariableHooks> make_hooks() override;

  void enter() { scope_.emplace(*this); }
  void leave() {
    scope_.reset();
    if (random_.has_value() && random_->are_current()) {
      random_.reset();
    }
  }

  std::size_t drop(const at::Tensor& tensor) {
    saved_.push_back(describe(tensor));
    return saved_.size() - 1;
  }

  at::Tensor value(std::size_t index) {
    std::lock_guard lock(mutex_);
    const int task = current_graph_task();
    if (task < 0 || task != task_ || !values_[index].defined()) {
      run_again();
      task_ = task;
    }
    return std::exchange(values_[index], at::Tensor());
  }

 private:
  void run_again();
  void check(const std::vector<at::Tensor>& values) const;

  std::recursive_mutex mutex_;
  RecomputeScope::Rerun rerun_;
  std::optional<RandomStates> random_;  ///< before the first run; none when it drew nothing
  std::vector<SavedVariable> inputs_;
  std::vector<std::string> saved_;  ///< what the first run saved
  std::optional<SavedTensorScope> scope_;
  std::vector<at::Tensor> values_;  ///< of the second run, until they are asked for
  int task_ = -1;                   ///< the backward that they are for
};

namespace {

/// Of a tensor saved in the first run.
class Dropped : public SavedVariableHooks {
 public:
  explicit Dropped(std::shared_ptr<RecomputedFrame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const at::Tensor& tensor) override { index_ = frame_->drop(tensor); }
  at::Tensor call_unpack_hook() override { return frame_->value(index_); }

 private:
  std::shared_ptr<RecomputedFrame> frame_;
  std::size_t index_ = 0;
};

/// Of a tensor saved in the second run; `fn` may run a backward of its own through it.
class Kept : public SavedVariableHooks {
 public:
  explicit Kept(std::vector<at::Tensor>& values) : values_(values) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    value_ = tensor.detach();
    values_.push_back(value_);
  }
  at::Tensor call_unpack_hook() override { return value_; }

 private:
  std::vector<at::Tensor>& values_;  ///< outlives the recording
  at::Tensor value_;
};

class KeepAll : public SavedTensorPolicy {
 public:
  std::unique_ptr<SavedVariableHooks> make_hooks() override {
    return std::make_unique<Kept>(values);
  }
  std::vector<at::Tensor> values;
};

}  // namespace

std::unique_ptr<SavedVariableHooks> RecomputedFrame::make_hooks() {
  return std::make_unique<Dropped>(shared_from_this());
}

void RecomputedFrame::run_again() {
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (const SavedVariable& input : inputs_) {
    inputs.push_back(input.unpack());
  }
  KeepAll kept;
  {
    c10::AutoGradMode grad_mode(true);
    std::optional<RandomStates> now;
    if (random_.has_value()) {
      now = random_->restore();
    }
    try {
      const SavedTensorScope scope(kept);
      rerun_(inputs);
    } catch (...) {
      if (now.has_value()) {
        now->restore();
      }
      throw;
    }
    if (now.has_value()) {
      now->restore();
    }
  }
  check(kept.values);
  values_ = std::move(kept.values);
}

void RecomputedFrame::check(const std::vector<at::Tensor>& values) const {
  constexpr const char* kAdvice =
      ". The function must compute the same both times: look for state that the first run changed, "
      "for branches on it, and for autocast that was on then";
  FSDP_CHECK(values.size() == saved_.size(), ErrorCode::kInvalidArgument,
             "[recompute] the second run saved ", values.size(),
             " tensors for backward, the first one ", saved_.size(), kAdvice);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string now = describe(values[i]);
    FSDP_CHECK(now == saved_[i], ErrorCode::kInvalidArgument, "[recompute] tensor ", i,
               " that autograd saves was ", saved_[i], " in the first run and is ", now,
               " in the second", kAdvice);
  }
}

RecomputeScope::RecomputeScope(const std::vector<at::Tensor>& inputs, Rerun rerun) {
  ensure_autograd_engine();
  frame_ = std::make_shared<RecomputedFrame>(inputs, std::move(rerun));
  frame_->enter();
}

RecomputeScope::~RecomputeScope() { frame_->leave(); }

bool records_graph() { return c10::GradMode::is_enabled(); }

}  // namespace detail

}  // namespace fsdp::engine
