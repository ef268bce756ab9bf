// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/adamw.hpp"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include "fsdp/base/error.hpp"

namespace fsdp::optim {

std::span<const Field<AdamWOptions>> AdamWRule::fields() {
  static constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                               {"beta1", &Options::beta1},
                                               {"beta2", &Options::beta2},
                                               {"eps", &Options::eps},
                                               {"weight_decay", &Options::weight_decay}};
  return kFields;
}

void AdamWRule::check(const Options& options) {
  FSDP_CHECK(options.lr >= 0 && options.eps >= 0 && options.weight_decay >= 0 &&
                 options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             ErrorCode::kInvalidArgument, "[AdamW] lr ", options.lr, ", betas ", options.beta1,
             " and ", options.beta2, ", eps ", options.eps, ", weight decay ", options.weight_decay,
             ": none may be negative, betas must be below 1");
}

void AdamWRule::update(const FlatOptimizer::Run& run, const Options& options) {
  const at::Tensor count = at::full({}, static_cast<double>(run.step),
                                    at::TensorOptions(at::kFloat).device(run.shard.device()));
  at::_fused_adamw_({run.shard}, {run.grad}, {run.states[0]}, {run.states[1]}, {}, {count},
                    options.lr, options.beta1, options.beta2, options.weight_decay, options.eps,
                    /*amsgrad=*/false,
                    /*maximize=*/false);
}

}  // namespace fsdp::optim
