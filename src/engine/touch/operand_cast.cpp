// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/operand_cast.hpp"

#include <ATen/core/List.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/touch/backward.hpp"

namespace fsdp::engine {

namespace {

constexpr std::array<std::string_view, 8> kTypeOperators = {
    "aten::to",   "aten::_to_copy",    "aten::type_as",  "aten::copy_",
    "aten::set_", "aten::result_type", "aten::can_cast", "aten::set_data"};
constexpr std::array<std::string_view, 10> kNorms = {
    "aten::batch_norm",        "aten::layer_norm",        "aten::group_norm",
    "aten::instance_norm",     "aten::rms_norm",          "aten::native_batch_norm",
    "aten::native_layer_norm", "aten::native_group_norm", "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm"};

bool is_weight(const at::Tensor& tensor) { return tensor.key_set().has(kTouchKey); }

}  // namespace

CastTraits cast_traits(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  CastTraits traits;
  traits.is_exempt = std::ranges::find(kTypeOperators, name) != kTypeOperators.end() ||
                     name.find("_backward") != std::string_view::npos;
  traits.is_norm = std::ranges::find(kNorms, name) != kNorms.end();
  for (std::size_t i = 0; i < std::min<std::size_t>(schema.arguments().size(), 64); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written || argument.name().starts_with("running_")) {
      traits.fixed |= std::uint64_t{1} << i;
    }
  }
  return traits;
}

bool OperatorCast::is_operand(const at::Tensor& tensor) const {
  return tensor.defined() && !is_weight(tensor) && tensor.is_floating_point() &&
         tensor.scalar_type() != weights_;
}

void OperatorCast::operand(c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    has_other_tensor_ = has_other_tensor_ || (tensor.defined() && !is_weight(tensor));
    if (is_operand(tensor) && rule_.operands) {
      given_ = given_.value_or(tensor.scalar_type());
      value = tensor.to(weights_);
    }
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> cast;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      c10::IValue element(tensor);
      operand(element);
      cast.push_back(element.toTensor());
    }
    value = std::move(cast);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> cast;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      c10::IValue element(tensor);
      operand(element);
      cast.push_back(element.toOptional<at::Tensor>());
    }
    value = std::move(cast);
  }
}

void OperatorCast::operands(torch::jit::Stack& stack) {
  if (traits_.is_exempt) {
    return;
  }
  const std::size_t count = schema_.arguments().size();
  for (std::size_t i = 0; i < count; ++i) {
    if (i < 64 && ((traits_.fixed >> i) & 1) == 0) {
      operand(stack[stack.size() - count + i]);
    }
  }
}

void OperatorCast::results(torch::jit::Stack& stack) const {
  // In backward proper, gradients have their types; recomputation there runs with grad mode on.
  const bool is_backward = current_graph_task() >= 0 && !c10::GradMode::is_enabled();
  if (traits_.is_exempt || !has_other_tensor_ || is_backward) {
    return;
  }
  const std::optional<at::ScalarType> norm_type = traits_.is_norm ? given_ : std::nullopt;
  const std::optional<at::ScalarType> type = rule_.results.has_value() ? rule_.results : norm_type;
  const std::size_t count = schema_.returns().size();
  // A norm's other results are statistics that its backward wants as they are.
  for (std::size_t i = 0; type.has_value() && i < (traits_.is_norm ? 1 : count); ++i) {
    c10::IValue& value = stack[stack.size() - count + i];
    const bool is_alias = schema_.returns()[i].alias_info() != nullptr;
    if (!is_alias && value.isTensor() && value.toTensor().defined() &&
        value.toTensor().is_floating_point()) {
      value = value.toTensor().to(*type);
    }
  }
}

}  // namespace fsdp::engine
