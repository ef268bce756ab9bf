// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/clip.hpp"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"
#include "optim/flat_views.hpp"

namespace fsdp {

namespace {

/// In fp64 whatever the type, in eight interleaved sums that a compiler turns into vectors.
template <class T>
double sum_of_squares(const T* values, std::int64_t numel) {
  constexpr int kLanes = 8;
  std::array<double, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  double total = 0;
  for (; i < numel; ++i) {
    total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  for (double sum : sums) {
    total += sum;
  }
  return total;
}

double sum_of_squares(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kFloat) {
    return sum_of_squares(tensor.const_data_ptr<float>(), tensor.numel());
  }
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kDouble) {
    return sum_of_squares(tensor.const_data_ptr<double>(), tensor.numel());
  }
  return tensor.abs().to(at::kDouble).square().sum().item<double>();
}

}  // namespace

double grad_norm(const Sharded& sharded) {
  c10::NoGradGuard no_grad;
  at::Tensor total = at::zeros({1}, at::kDouble);
  for (const NamedShard& parameter : sharded.named_parameters()) {
    const at::Tensor& grad = parameter.shard.grad();
    if (grad.defined()) {
      *total.mutable_data_ptr<double>() += sum_of_squares(
          grad.narrow(0, parameter.answered_begin, parameter.answered_numel));
    }
  }
  sharded.world().communicator().all_reduce(total, {.name = "grad_norm"});
  return std::sqrt(total.item<double>());
}

double clip_grad_norm_(Sharded& sharded, double max_norm) {
  c10::NoGradGuard no_grad;
  FSDP_CHECK(max_norm > 0, ErrorCode::kInvalidArgument, "[clip_grad_norm_] max_norm is ", max_norm,
             ", must be positive");
  const double norm = grad_norm(sharded);
  // The same small term as torch::nn::utils::clip_grad_norm_.
  const double scale = max_norm / (norm + 1e-6);
  if (std::isfinite(norm) && scale < 1.0) {
    for (at::Tensor& grad : optim::views_with_gradients(sharded).grads) {
      grad.mul_(scale);
    }
  }
  return norm;
}

}  // namespace fsdp
