// SPDX-License-Identifier: Apache-2.0
/// AdamW over whole flat shards: one fused pass over shard, gradient and moments for every run of
/// parameters that are treated alike.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fsdp/optim/element_wise.hpp"

namespace fsdp::optim {

/// As torch::optim::AdamW; the rule is that of Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization", 2019.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// See ElementRule. None of the numbers may be negative, and betas must be below 1.
struct AdamWRule {
  using Options = AdamWOptions;
  static constexpr const char* kName = "AdamW";
  static std::span<const Field<Options>> fields();
  static std::vector<std::string> states(const Options&) { return {"exp_avg", "exp_avg_sq"}; }
  static void check(const Options& options);
  static void update(const FlatOptimizer::Run& run, const Options& options);
};

/// *Example*:
///
///     auto groups = sharded.param_groups(fsdp::decay_rule());
///     fsdp::optim::AdamW optimizer(sharded, {{groups[0].names, {.lr = 3e-4, .weight_decay = 0.1}},
///                                            {groups[1].names, {.lr = 3e-4, .weight_decay = 0}}});
///
/// or all alike, `fsdp::optim::AdamW optimizer(sharded, {.lr = 3e-4})`.
using AdamW = ElementWise<AdamWRule>;

}  // namespace fsdp::optim
