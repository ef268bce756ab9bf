// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/participate.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/executor/engine.hpp"
#include "engine/touch/stand_in.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One touch of the branch that is left out. See NOTE [Taking part].
struct Touch : torch::CustomClassHolder {
  std::weak_ptr<Engine> engine;
  std::vector<int> units;
  std::vector<at::TensorOptions> options;  ///< of the parameters that get stand-ins
  std::vector<std::vector<std::int64_t>> sizes;
};

/// Zero in, zero out; what counts is what its backward does.
struct TakePart : torch::autograd::Function<TakePart> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& zero,
                            at::TensorList /*parameters*/, const c10::intrusive_ptr<Touch>& touch) {
    ctx->saved_data["touch"] = c10::IValue::make_capsule(touch);
    return torch::zeros_like(zero);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto touch =
        c10::static_intrusive_pointer_cast<Touch>(ctx->saved_data["touch"].toCapsule());
    if (auto engine = touch->engine.lock()) {
      touch_briefly(*engine, touch->units, "participate");
    }
    variable_list results = {grads[0]};
    for (std::size_t i = 0; i < touch->sizes.size(); ++i) {
      results.push_back(make_stand_in(touch->sizes[i], touch->options[i]));
    }
    results.emplace_back();  // for the touch itself
    return results;
  }
};

}  // namespace

at::Tensor participate(const std::shared_ptr<Engine>& engine,
                       const std::function<bool(const Unit&, const Parameter&)>& is_selected) {
  const std::vector<Unit>& units = engine->units();
  std::vector<int> involved;
  for (std::size_t index = 0; index < units.size(); ++index) {
    const Unit& unit = units[index];
    if (std::ranges::any_of(unit.parameters,
                            [&](const Parameter& of) { return is_selected(unit, of); })) {
      FSDP_CHECK(unit.is_optional || unit.placement.is_resident(), ErrorCode::kInvalidArgument,
                 "[participate] unit \"", unit.name,
                 "\" is not optional, so that ranks which run it may gather it at other places: "
                 "give it a rule in Options::rules with optional = true on all ranks");
      involved.push_back(static_cast<int>(index));
    }
  }
  const Unit& first = units[static_cast<std::size_t>(involved.front())];
  at::Tensor zero = torch::zeros({}, at::TensorOptions(first.dtype).device(first.device));
  for (std::vector<int>& touched : engine->expected_run(involved)) {
    touch_briefly(*engine, touched, "participate");
    engine->follow_requires_grad(touched);
    const auto touch = c10::make_intrusive<Touch>();
    touch->engine = engine;
    touch->units = std::move(touched);
    std::vector<at::Tensor> parameters;
    for (int index : touch->units) {
      const Unit& unit = units[static_cast<std::size_t>(index)];
      for (const Parameter& parameter : unit.parameters) {
        if (parameter.tensor.requires_grad() && is_selected(unit, parameter)) {
          parameters.push_back(parameter.tensor);
          touch->sizes.push_back(parameter.sizes);
          touch->options.push_back(at::TensorOptions(unit.param_dtype).device(unit.device));
        }
      }
    }
    zero = TakePart::apply(zero, at::TensorList(parameters), touch);
  }
  return zero;
}

}  // namespace fsdp::engine
