// SPDX-License-Identifier: Apache-2.0
/// AdamW over whole flat shards: one fused pass over shard, gradient and moments for every run of
/// parameters that are treated alike.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/optim/flat_optimizer.hpp"

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

/// *Invariants*, *Thread safety*: those of FlatOptimizer. *Example*:
///
///     fsdp::optim::AdamW optimizer(sharded, {.lr = 3e-4});
///     fsdp::optim::AdamW grouped(sharded, {{.parameters = {"*.bias"}, .options = {.lr = 3e-4,
///                                           .weight_decay = 0}},
///                                          {.parameters = {"*"}, .options = {.lr = 3e-4}}});
class AdamW : public FlatOptimizer {
 public:
  /// All parameters in one group. @memory two moments of the shards' size and dtype
  /// @throws Error kInvalidArgument for a negative number or a beta of 1 or more
  explicit AdamW(Sharded sharded, AdamWOptions options = {});
  /// @throws Error also kNotFound for a pattern that fits no parameter
  AdamW(Sharded sharded, std::vector<Group<AdamWOptions>> groups);

  /// To change between steps, for example the learning rate.
  AdamWOptions& options(int group = 0) { return options_.at(static_cast<std::size_t>(group)); }

  std::map<std::string, double> values(int group) const override;
  void set_values(int group, const std::map<std::string, double>& values) override;

 private:
  void update(const Run& run) override;
  std::vector<AdamWOptions> options_;
};

}  // namespace fsdp::optim
