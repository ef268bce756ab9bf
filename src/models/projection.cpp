// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/projection.hpp"

#include <torch/torch.h>

#include <cmath>

#include "fsdp/base/error.hpp"

namespace fsdp::models {

void AdaptableImpl::add_adapter(std::int64_t rank, double alpha) {
  FSDP_CHECK(!has_adapter(), ErrorCode::kInvalidArgument, "LoRA: there is an adapter already");
  FSDP_CHECK(rank >= 1 && std::isfinite(alpha) && alpha > 0, ErrorCode::kInvalidArgument,
             "LoRA: the rank is ", rank, " and alpha ", alpha, ", both must be positive");
  const auto options = [](std::int64_t in, std::int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(false);
  };
  lora_A = register_module("lora_A", torch::nn::Linear(options(in_, rank)));
  lora_B = register_module("lora_B", torch::nn::Linear(options(rank, out_)));
  torch::NoGradGuard no_grad;
  torch::nn::init::kaiming_uniform_(lora_A->weight, std::sqrt(5.0));
  lora_B->weight.zero_();
  lora_A->to(weight.scalar_type());
  lora_B->to(weight.scalar_type());
  scale_ = alpha / static_cast<double>(rank);
}

at::Tensor AdaptableImpl::adapted(const at::Tensor& x, const at::Tensor& y) {
  return has_adapter() ? y + scale_ * lora_B->forward(lora_A->forward(x)) : y;
}

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out, double stddev)
    : AdaptableImpl(in, out) {
  weight = register_parameter("weight", torch::empty({in, out}).normal_(0, stddev));
  bias = register_parameter("bias", torch::zeros({out}));
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = -1;
  return adapted(x, torch::addmm(bias, x.reshape({-1, x.size(-1)}), weight).view(sizes));
}

DenseImpl::DenseImpl(std::int64_t in, std::int64_t out, bool has_bias, double stddev)
    : AdaptableImpl(in, out) {
  weight = register_parameter("weight", torch::empty({out, in}).normal_(0, stddev));
  if (has_bias) {
    bias = register_parameter("bias", torch::zeros({out}));
  }
}

at::Tensor DenseImpl::forward(const at::Tensor& x) {
  return adapted(x, bias.defined() ? torch::linear(x, weight, bias) : torch::linear(x, weight));
}

}  // namespace fsdp::models
