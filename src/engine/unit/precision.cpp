// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/precision.hpp"

#include <torch/torch.h>

#include <algorithm>

#include "fsdp/base/error.hpp"

namespace fsdp {

namespace {

template <class... Impls>
Units units_of_any() {
  return Units([](const Candidate& candidate) {
    return ((dynamic_cast<const Impls*>(candidate.module) != nullptr) || ...);
  });
}

namespace nn = torch::nn;

}  // namespace

Units batch_norms() {
  return units_of_any<nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl>();
}

Units norm_layers() {
  return units_of_any<nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl,
                      nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl,
                      nn::LayerNormImpl, nn::GroupNormImpl, nn::LocalResponseNormImpl>();
}

namespace engine {

namespace {

bool is_low(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

void check_type(const std::optional<at::ScalarType>& type, const std::string& name) {
  FSDP_CHECK(!type.has_value() || is_low(*type) || *type == at::kFloat, ErrorCode::kInvalidArgument,
             "[fully_shard] ", name, " is ", c10::toString(type.value_or(at::kFloat)),
             ", must be bfloat16, float16 or float32");
}

}  // namespace

void check_precision(const Options& options) {
  check_type(options.precision.param, "precision.param");
  check_type(options.precision.reduce, "precision.reduce");
  check_type(options.precision.output, "precision.output");
  check_type(options.precision.buffers, "precision.buffers");
  for (std::size_t i = 0; i < options.rules.size(); ++i) {
    check_type(options.rules[i].param, "rules[" + std::to_string(i) + "].param");
  }
}

bool gathers_float16(const Options& options) {
  return options.precision.param == at::kHalf ||
         std::ranges::any_of(options.rules,
                             [](const UnitRule& rule) { return rule.param == at::kHalf; });
}

Types types_of(const at::Tensor& parameter, bool keeps_precision, const MixedPrecision& precision) {
  const at::ScalarType own = parameter.scalar_type();
  Types types{own, own, own};
  if (!c10::isFloatingType(own)) {
    return types;
  }
  if (keeps_precision) {
    types.param = is_low(own) ? at::kFloat : own;
  } else {
    types.param = precision.param.value_or(own);
  }
  const bool needs_masters =
      keeps_precision || (parameter.requires_grad() && !precision.low_precision_shards);
  types.shard = is_low(own) && needs_masters ? at::kFloat : own;
  types.reduce = types.shard == at::kFloat ? precision.reduce.value_or(types.shard) : types.shard;
  return types;
}

std::string describe(const Types& types) {
  std::string text = c10::toString(types.param);
  if (types.shard != types.param) {
    text += std::string(" of ") + c10::toString(types.shard);
  }
  return text;
}

CastBuffer::CastBuffer(const at::Tensor& of_module, at::ScalarType dtype)
    : of_module_(of_module),
      saved_(of_module.detach().clone()),
      seen_version_(static_cast<std::uint32_t>(saved_._version())) {
  of_module_.set_data(saved_.to(dtype));
}

void CastBuffer::sync() {
  torch::NoGradGuard no_grad;
  if (static_cast<std::uint32_t>(saved_._version()) != seen_version_) {
    of_module_.copy_(saved_);
  } else if (!torch::equal(saved_.to(of_module_.scalar_type()), of_module_)) {
    saved_.copy_(of_module_);
  }
  seen_version_ = static_cast<std::uint32_t>(saved_._version());
}

}  // namespace engine

}  // namespace fsdp
