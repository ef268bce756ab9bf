// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/touch/shard_grad.hpp"
#include "engine/unit/named_shards.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

Gradients::Gradients(const ModuleLayout& layout, const std::vector<FlatParts>& shards,
                     memory::Ledger& ledger, Counters& counters, Health& health,
                     const comm::Link& world)
    : layout_(layout),
      shards_(shards),
      health_(health),
      sink_(world, layout, shards, ledger, counters) {}

Gradients::~Gradients() {
  gradient_hooks_.clear();
  for (GradGuards& guards : guards_) {
    guards.reset();
  }
}

void Gradients::connect(const std::weak_ptr<TouchTarget>& touch,
                        const std::weak_ptr<BackwardTarget>& backward) {
  sink_.connect(touch);
  for (int index = 0; index < layout_.count(); ++index) {
    const Unit& unit = layout_.at(index);
    guards_.emplace_back(unit, index, touch);
    if (c10::isFloatingType(unit.dtype) || c10::isComplexType(unit.dtype)) {
      for (int i = 0; i < unit.layout->parameters(); ++i) {
        gradient_hooks_.emplace_back(backward, index, i, unit.at(i).tensor);
        install_grad_follower(backward, index, i, shards_[static_cast<std::size_t>(index)].part(i));
      }
    }
  }
}

void Gradients::renew_gradient_hooks() {
  for (GradientHooks& hooks : gradient_hooks_) {
    hooks.renew();
  }
}

// --- a backward ------------------------------------------------------------------------------

bool Gradients::open() {
  backward_ = Backward::kOpen;
  return sink_.follow_requires_grad();  // what was frozen or unfrozen since counts from here on
}

void Gradients::bury() {
  backward_ = Backward::kNone;
  reset_grads();  // it may have left a gradient that was on its way
  health_.together([&] { sink_.drop_collected(); });
}

void Gradients::collect(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in) {
  const at::Tensor grad = std::exchange(tensor.mutable_grad(), at::Tensor());
  if (is_stand_in) {
    sink_.stand_in(unit, parameter);
  } else {
    sink_.collect(unit, parameter, grad);
  }
}

bool Gradients::is_reduced(int bundle) const {
  return !sink_.defers(bundle) &&
         std::ranges::any_of(layout_.members(bundle), [&](int unit) { return trains(unit); });
}

Gradients::End Gradients::close() {
  const bool has_gradients = std::exchange(backward_, Backward::kNone) == Backward::kHasGradients;
  return {.reduces = has_gradients && sink_.sync() != GradientSync::kDeferAll,
          .hands_out = has_gradients && sink_.sync() == GradientSync::kEveryBackward};
}

void Gradients::deliver(const End& end) {
  health_.together([&] {
    if (end.hands_out) {
      sink_.hand_out();
    } else {
      sink_.bring_home();
    }
  });
}

bool Gradients::set_guards() {
  for (GradGuards& guards : guards_) {
    guards.set();
  }
  return !std::exchange(are_guards_set_, true);
}

/// All ranks have ended their reductions, so a hook that throws leaves nobody waiting in one; what
/// comes next meets the failure. Not through together(): hooks' operators are to be checked as all
/// operators on shards are.
void Gradients::run_hooks() {
  if (hooks_.empty()) {
    return;
  }
  const auto hooks = hooks_;  // a hook may remove itself
  try {
    for (const ModuleLayout::Index index : layout_.ordered_parameters()) {
      for (const auto& [id, hook] : hooks) {
        if (sink_.was_reduced(index.unit, index.parameter)) {
          const NamedShard parameter = named_shard(layout_, index, shards_);
          hook(parameter, parameter.shard.grad());
        }
      }
    }
  } catch (...) {
    health_.fail();
  }
}

// --- between backwards -----------------------------------------------------------------------

void Gradients::check_not_open(const char* where) const {
  FSDP_CHECK(!is_open(), ErrorCode::kInvalidArgument, "[", where, "] a backward is under way");
}

void Gradients::set_sync(GradientSync sync) {
  check_not_open("set_gradient_sync");
  sink_.follow_requires_grad();
  sink_.set_sync(sync);
}

void Gradients::set_divisor(double divisor) {
  FSDP_CHECK(std::isfinite(divisor) && divisor > 0, ErrorCode::kInvalidArgument,
             "[set_gradient_divisor] the divisor is ", divisor, ", must be positive and finite");
  sink_.set_divisor(divisor);
}

void Gradients::zero() {
  reset_grads();
  sink_.zero();
}

void Gradients::follow(int unit, int parameter) {
  switch (guards(unit).state(parameter)) {
    case ModuleGrad::kAsLeft: break;
    case ModuleGrad::kReset:
      guards(unit).accept_reset(parameter);
      sink_.forget(unit, parameter);
      break;
    case ModuleGrad::kAssigned:
      fail(
          ErrorCode::kInvalidArgument,
          "[grad] a gradient was assigned to the module's tensor of \"",
          layout_.at(unit).at(parameter).name,
          "\", but gradients live in shards, where optimizers and backwards look for them. Let "
          "backward deliver it: zero_grad(), then (weight * gradient).sum().backward(), which also "
          "averages it over the ranks. Or set the grad of the parameter's shard in "
          "sharded.named_parameters(). module->zero_grad() takes out what was assigned");
  }
}

void Gradients::follow_all() {
  for (int unit = 0; unit < std::ssize(guards_); ++unit) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      follow(unit, i);
    }
  }
}

void Gradients::check_none_waits(int unit) const {
  FSDP_CHECK(!has_waiting(), ErrorCode::kInvalidArgument, "[optimizer] the shards of unit \"",
             layout_.at(unit).name,
             "\" are about to change while gradients wait to be reduced: they would be missing in "
             "this step. Call set_gradient_sync(GradientSync::kEveryBackward) before the last "
             "backward of a step, or zero_grad() to forget them");
}

std::uint64_t Gradients::add_hook(ReducedHook hook) {
  FSDP_CHECK(hook != nullptr, ErrorCode::kInvalidArgument, "[on_reduced] the hook is empty");
  hooks_.emplace(++last_hook_, std::move(hook));
  return last_hook_;
}

void Gradients::remove_hook(std::uint64_t id) {
  FSDP_CHECK(hooks_.erase(id) == 1, ErrorCode::kNotFound, "[remove_on_reduced] no hook is ", id,
             ": was it removed before?");
}

void Gradients::start_over() {
  backward_ = Backward::kNone;
  reset_grads();  // a gradient that was refused may have stayed
  sink_.start_over();
}

void Gradients::reset_grads() {
  for (GradGuards& guards : guards_) {
    guards.reset();
    if (are_guards_set_) {
      guards.set();
    }
  }
}

std::int64_t Gradients::trained_bytes() const {
  std::int64_t bytes = 0;
  for (int unit = 0; unit < layout_.count(); ++unit) {
    bytes += sink_.grads(unit).is_defined() ? layout_.at(unit).shard_bytes() : 0;
  }
  return bytes;
}

}  // namespace fsdp::engine
