// SPDX-License-Identifier: Apache-2.0
/// Gradients: the part of the engine that runs in backward and at its end.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/touch/backward.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

void Engine::ensure_backward() {
  if (is_backward_open_) {
    return;
  }
  join_backward(weak_from_this());
  is_backward_open_ = true;
  has_gradients_ = false;
  follow_requires_grad();
  for (int bundle = 0; bundle < bundles_.count(); ++bundle) {
    const auto members = bundles_.members(bundle);
    const bool trains = std::ranges::any_of(members, [&](int unit) { return at(unit).trains; });
    schedule_->set_trainable(bundle, trains && !sink_->defers(bundle));
  }
}

/// What was frozen or unfrozen since the last backward counts from this one on.
void Engine::follow_requires_grad() {
  for (Unit& unit : units_) {
    unit.trains = unit.is_trainable();
    for (Parameter& parameter : unit.parameters) {
      parameter.shard.set_requires_grad(parameter.tensor.requires_grad());
    }
  }
  if (sink_->make_room()) {
    tag_gradients();
    update_promise();
  }
}

void Engine::backward_died() noexcept {
  std::lock_guard lock(mutex_);
  is_backward_dead_ = true;
}

void Engine::recover_from_dead_backward() {
  if (std::exchange(is_backward_dead_, false)) {
    is_backward_open_ = false;
    for (Unit& unit : units_) {
      unit.was_in_forward = false;
      unit.has_secondary = false;
    }
    execute(schedule_->abort_backward());
    drop_gradients();
  }
}

void Engine::gradient(int index, int parameter_index, const at::Tensor& tensor) {
  std::lock_guard lock(mutex_);
  c10::NoGradGuard no_grad;
  check_usable();
  recover_from_dead_backward();
  ensure_backward();
  Unit& unit = at(index);
  Parameter& parameter = unit.parameters[static_cast<std::size_t>(parameter_index)];
  check_lives_in_shards(parameter, "backward");
  has_gradients_ = true;
  if (unit.is_optional && !schedule_->is_current(unit.bundle)) {
    // Whether an operator of this backward takes the weights depends on what ran in forward, which
    // ranks that only take part cannot know: so it is always touched.
    touch_briefly({&index, 1}, "its gradient");
  }
  const bool is_deferred = sink_->defers(unit.bundle);
  if (!is_deferred) {
    execute(schedule_->gradient(unit.bundle));
  }
  const at::Tensor grad = std::exchange(tensor.mutable_grad(), at::Tensor());
  sink_->collect(index, parameter_index, grad);
  if (!is_deferred && is_complete(unit.bundle)) {
    execute(schedule_->gradients_complete(unit.bundle));
  }
}

bool Engine::is_complete(int bundle) const {
  return std::ranges::all_of(bundles_.members(bundle), [&](int unit) {
    return std::ranges::all_of(at(unit).parameters, [](const Parameter& parameter) {
      return parameter.fired > 0 || !parameter.tensor.requires_grad();
    });
  });
}

void Engine::end_backward() {
  std::lock_guard lock(mutex_);
  c10::NoGradGuard no_grad;
  check_usable();
  is_backward_open_ = false;
  is_forward_checked_ = false;
  // autograd::grad reaches no parameter's accumulation: there is nothing to reduce then.
  const bool reduces = has_gradients_ && sink_->sync() != GradientSync::kDeferAll;
  execute(schedule_->end_backward(reduces));
  if (has_gradients_ && sink_->sync() == GradientSync::kEveryBackward) {
    hand_out_gradients();
  } else {
    bring_gradients_home();
  }
  emit(trace::EventKind::kBackwardEnd, -1);
  set_guard_grads();
  for (Unit& unit : units_) {
    unit.was_in_forward = false;
    unit.has_secondary = false;
  }
  if (!has_finished_a_backward_) {
    has_finished_a_backward_ = true;
    check_unused_parameters();
  }
  if (has_gradients_ && sink_->sync() == GradientSync::kEveryBackward) {
    run_reduced_hooks();
  }
}

void Engine::set_guard_grads() {
  for (Unit& unit : units_) {
    for (Parameter& parameter : unit.parameters) {
      if (parameter.tensor.requires_grad()) {
        parameter.tensor.mutable_grad() = parameter.grad_guard;
      }
    }
  }
}

void Engine::check_unused_parameters() {
  for (const Unit& unit : units_) {
    for (const Parameter& parameter : unit.parameters) {
      // The registry's handle and ours: no member holds this tensor.
      const bool is_held_by_registry_alone = parameter.tensor.use_count() == 2;
      FSDP_CHECK(
          parameter.was_touched || !parameter.has_member || !parameter.tensor.requires_grad() ||
              !is_held_by_registry_alone || !parameter.aliases.empty(),
          ErrorCode::kInvalidArgument, "[backward] parameter \"", parameter.name,
          "\" is registered but no operator took it and no member holds it: was another "
          "tensor assigned to the member? That does not tie weights. Use fsdp::tie_weights(), or "
          "remove the registered parameter");
    }
  }
}

// --- what the facade asks --------------------------------------------------------------------

void Engine::set_gradient_sync(GradientSync sync) {
  std::lock_guard lock(mutex_);
  check_usable();
  recover_from_dead_backward();
  FSDP_CHECK(!is_backward_open_, ErrorCode::kInvalidArgument,
             "[set_gradient_sync] a backward is under way");
  follow_requires_grad();
  sink_->set_sync(sync);
  update_promise();
}

void Engine::set_gradient_divisor(double divisor) {
  std::lock_guard lock(mutex_);
  check_usable();
  FSDP_CHECK(std::isfinite(divisor) && divisor > 0, ErrorCode::kInvalidArgument,
             "[set_gradient_divisor] the divisor is ", divisor, ", must be positive and finite");
  sink_->set_divisor(divisor);
}

}  // namespace fsdp::engine
