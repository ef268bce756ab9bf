// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/sgd.hpp"

#include <ATen/ops/_fused_sgd.h>

#include "fsdp/base/error.hpp"

namespace fsdp::optim {

std::span<const Field<SGDOptions>> SGDRule::fields() {
  static constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                               {"momentum", &Options::momentum},
                                               {"dampening", &Options::dampening},
                                               {"weight_decay", &Options::weight_decay},
                                               {"nesterov", &Options::nesterov}};
  return kFields;
}

std::vector<std::string> SGDRule::states(const Options& options) {
  return options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                              : std::vector<std::string>{};
}

void SGDRule::check(const Options& options) {
  FSDP_CHECK(options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0,
             ErrorCode::kInvalidArgument, "[SGD] lr ", options.lr, ", momentum ", options.momentum,
             ", weight decay ", options.weight_decay, ": none may be negative");
  FSDP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
             ErrorCode::kInvalidArgument, "[SGD] nesterov needs momentum and no dampening, not ",
             options.momentum, " and ", options.dampening);
}

void SGDRule::update(const FlatOptimizer::Run& run, const Options& options) {
  FSDP_CHECK(options.momentum == 0 || !run.states.empty(), ErrorCode::kInvalidArgument,
             "[SGD] momentum is ", options.momentum,
             " now and was 0 when the optimizer was built, "
             "so that there is no buffer for it: build it with a momentum above 0");
  std::vector<at::Tensor> momentum;
  if (options.momentum != 0) {
    momentum = run.states;
  }
  // The buffer is zero before the first step: undamped, that is the same as taking the gradient.
  const bool takes_gradient = run.step == 1 && options.dampening != 0;
  at::_fused_sgd_({run.shard}, {run.grad}, momentum, options.weight_decay, options.momentum,
                  options.lr, options.dampening, options.nesterov, /*maximize=*/false,
                  takes_gradient);
}

}  // namespace fsdp::optim
