// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/sgd.hpp"

#include <ATen/ops/_fused_sgd.h>

#include <utility>

#include "fsdp/base/error.hpp"
#include "optim/hyper_parameters.hpp"

namespace fsdp::optim {
namespace {

using Options = SGDOptions;
constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                      {"momentum", &Options::momentum},
                                      {"dampening", &Options::dampening},
                                      {"weight_decay", &Options::weight_decay},
                                      {"nesterov", &Options::nesterov}};
constexpr std::span<const Field<Options>> kAll(kFields);

void check(const SGDOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0,
             ErrorCode::kInvalidArgument, "[SGD] lr ", options.lr, ", momentum ", options.momentum,
             ", weight decay ", options.weight_decay, ": none may be negative");
  FSDP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
             ErrorCode::kInvalidArgument, "[SGD] nesterov needs momentum and no dampening, not ",
             options.momentum, " and ", options.dampening);
}

}  // namespace

SGD::SGD(Sharded sharded, SGDOptions options)
    : SGD(std::move(sharded), {{.parameters = {"*"}, .options = options}}) {}

SGD::SGD(Sharded sharded, std::vector<Group<SGDOptions>> groups)
    : FlatOptimizer("SGD", std::move(sharded),
                    [&] {
                      std::vector<GroupSpec> specs;
                      for (const auto& group : groups) {
                        check(group.options);
                        specs.push_back({.parameters = group.parameters, .states = {}});
                        if (group.options.momentum > 0) {
                          specs.back().states = {"momentum_buffer"};
                        }
                      }
                      return specs;
                    }()),
      options_(options_of(groups)) {}

void SGD::update(const Run& run) {
  const SGDOptions& options = this->options(run.group);
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

std::map<std::string, double> SGD::values(int group) const {
  return to_values(options_.at(static_cast<std::size_t>(group)), kAll);
}

void SGD::set_values(int group, const std::map<std::string, double>& values) {
  from_values(options(group), kAll, values);
}

}  // namespace fsdp::optim
