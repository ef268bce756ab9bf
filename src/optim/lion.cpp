// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/lion.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/sign.h>

#include <algorithm>

#include "fsdp/base/error.hpp"

namespace fsdp::optim {
namespace {

template <class T>
void update_elements(T* shard, const T* grad, T* average, std::int64_t numel,
                     const LionOptions& options) {
  const T kept = static_cast<T>(1 - options.lr * options.weight_decay);
  const T lr = static_cast<T>(options.lr);
  const T beta1 = static_cast<T>(options.beta1), beta2 = static_cast<T>(options.beta2);
  const T rest1 = static_cast<T>(1 - options.beta1), rest2 = static_cast<T>(1 - options.beta2);
  constexpr std::int64_t kGrain = std::int64_t{1} << 15;
  at::parallel_for(0, numel, kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T direction = average[i] * beta1 + grad[i] * rest1;
      const T sign = static_cast<T>(direction > 0) - static_cast<T>(direction < 0);
      shard[i] = shard[i] * kept - lr * sign;
      average[i] = average[i] * beta2 + grad[i] * rest2;
    }
  });
}

/// For other types and devices: the same by LibTorch's operators, in pieces that bound temporaries.
void update_in_pieces(const at::Tensor& shard, const at::Tensor& grad, const at::Tensor& average,
                      const LionOptions& options) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  for (std::int64_t begin = 0; begin < shard.numel(); begin += kPiece) {
    const auto part = [&](const at::Tensor& whole) {
      return whole.narrow(0, begin, std::min(kPiece, whole.numel() - begin));
    };
    at::Tensor direction = at::lerp(part(grad), part(average), options.beta1).sign_();
    part(shard).mul_(1 - options.lr * options.weight_decay).add_(direction, -options.lr);
    part(average).lerp_(part(grad), 1 - options.beta2);
  }
}

}  // namespace

std::span<const Field<LionOptions>> LionRule::fields() {
  static constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                               {"beta1", &Options::beta1},
                                               {"beta2", &Options::beta2},
                                               {"weight_decay", &Options::weight_decay}};
  return kFields;
}

void LionRule::check(const Options& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0 && options.beta1 >= 0 &&
                 options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             ErrorCode::kInvalidArgument, "[Lion] lr ", options.lr, ", betas ", options.beta1,
             " and ", options.beta2, ", weight decay ", options.weight_decay,
             ": none may be negative, betas must be below 1");
}

void LionRule::update(const FlatOptimizer::Run& run, const Options& options) {
  const at::Tensor &shard = run.shard, &grad = run.grad, &exp_avg = run.states[0];
  if (shard.is_cpu() && shard.scalar_type() == at::kFloat) {
    update_elements(shard.mutable_data_ptr<float>(), grad.const_data_ptr<float>(),
                    exp_avg.mutable_data_ptr<float>(), shard.numel(), options);
  } else if (shard.is_cpu() && shard.scalar_type() == at::kDouble) {
    update_elements(shard.mutable_data_ptr<double>(), grad.const_data_ptr<double>(),
                    exp_avg.mutable_data_ptr<double>(), shard.numel(), options);
  } else {
    update_in_pieces(shard, grad, exp_avg, options);
  }
}

}  // namespace fsdp::optim
