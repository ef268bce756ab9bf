// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/adamw.hpp"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <utility>

#include "fsdp/base/error.hpp"
#include "optim/adamw_rule.hpp"
#include "optim/hyper_parameters.hpp"

namespace fsdp::optim {
namespace {

using Options = AdamWOptions;
constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                      {"beta1", &Options::beta1},
                                      {"beta2", &Options::beta2},
                                      {"eps", &Options::eps},
                                      {"weight_decay", &Options::weight_decay}};

}  // namespace

std::span<const Field<AdamWOptions>> adamw_fields() { return kFields; }

void check(const AdamWOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.eps >= 0 && options.weight_decay >= 0 &&
                 options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             ErrorCode::kInvalidArgument, "[AdamW] lr ", options.lr, ", betas ", options.beta1,
             " and ", options.beta2, ", eps ", options.eps, ", weight decay ", options.weight_decay,
             ": none may be negative, betas must be below 1");
}

void adamw_update(const at::Tensor& shard, const at::Tensor& grad, const at::Tensor& exp_avg,
                  const at::Tensor& exp_avg_sq, std::int64_t step, const AdamWOptions& options) {
  const at::Tensor count = at::full({}, static_cast<double>(step), at::kFloat);
  at::_fused_adamw_({shard}, {grad}, {exp_avg}, {exp_avg_sq}, {}, {count}, options.lr,
                    options.beta1, options.beta2, options.weight_decay, options.eps,
                    /*amsgrad=*/false,
                    /*maximize=*/false);
}

AdamW::AdamW(Sharded sharded, AdamWOptions options)
    : AdamW(std::move(sharded), {{.parameters = {"*"}, .options = options}}) {}

AdamW::AdamW(Sharded sharded, std::vector<Group<AdamWOptions>> groups)
    : FlatOptimizer("AdamW", std::move(sharded),
                    [&] {
                      std::vector<GroupSpec> specs;
                      for (const auto& group : groups) {
                        check(group.options);
                        specs.push_back({group.parameters, {"exp_avg", "exp_avg_sq"}});
                      }
                      return specs;
                    }()),
      options_(options_of(groups)) {}

void AdamW::update(const Run& run) {
  adamw_update(run.shard, run.grad, run.states[0], run.states[1], run.step, options(run.group));
}

std::map<std::string, double> AdamW::values(int group) const {
  return to_values(options_.at(static_cast<std::size_t>(group)), adamw_fields());
}

void AdamW::set_values(int group, const std::map<std::string, double>& values) {
  from_values(options(group), adamw_fields(), values);
}

}  // namespace fsdp::optim
