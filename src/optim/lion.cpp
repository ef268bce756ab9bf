// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/lion.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/sign.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"
#include "optim/hyper_parameters.hpp"

namespace fsdp::optim {
namespace {

using Options = LionOptions;
constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                      {"beta1", &Options::beta1},
                                      {"beta2", &Options::beta2},
                                      {"weight_decay", &Options::weight_decay}};
constexpr std::span<const Field<Options>> kAll(kFields);

void check(const LionOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0 && options.beta1 >= 0 &&
                 options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             ErrorCode::kInvalidArgument, "[Lion] lr ", options.lr, ", betas ", options.beta1,
             " and ", options.beta2, ", weight decay ", options.weight_decay,
             ": none may be negative, betas must be below 1");
}

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

void lion_update(const at::Tensor& shard, const at::Tensor& grad, const at::Tensor& exp_avg,
                 const LionOptions& options) {
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

}  // namespace

Lion::Lion(Sharded sharded, LionOptions options)
    : Lion(std::move(sharded), {{.parameters = {"*"}, .options = options}}) {}

Lion::Lion(Sharded sharded, std::vector<Group<LionOptions>> groups)
    : FlatOptimizer("Lion", std::move(sharded),
                    [&] {
                      std::vector<GroupSpec> specs;
                      for (const auto& group : groups) {
                        check(group.options);
                        specs.push_back({group.parameters, {"exp_avg"}});
                      }
                      return specs;
                    }()),
      options_(options_of(groups)) {}

void Lion::update(const Run& run) {
  lion_update(run.shard, run.grad, run.states[0], options(run.group));
}

std::map<std::string, double> Lion::values(int group) const {
  return to_values(options_.at(static_cast<std::size_t>(group)), kAll);
}

void Lion::set_values(int group, const std::map<std::string, double>& values) {
  from_values(options(group), kAll, values);
}

}  // namespace fsdp::optim
