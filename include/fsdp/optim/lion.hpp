// SPDX-License-Identifier: Apache-2.0
/// Lion over whole flat shards: steps by the sign of an average of gradients, with half of AdamW's
/// state.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/optim/flat_optimizer.hpp"

namespace fsdp::optim {

/// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, program 1. The authors
/// advise a third to a tenth of AdamW's learning rate and three to ten times its decay.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;   ///< of the average whose sign is taken
  double beta2 = 0.99;  ///< of the average that is kept
  double weight_decay = 0;
};

/// *Invariants*, *Thread safety*: those of FlatOptimizer. *Example*:
/// `fsdp::optim::Lion optimizer(sharded, {.lr = 1e-4, .weight_decay = 0.3});`
class Lion : public FlatOptimizer {
 public:
  /// All parameters in one group. @memory one average of the shards' size and dtype
  /// @throws Error kInvalidArgument for a negative number or a beta of 1 or more
  explicit Lion(Sharded sharded, LionOptions options = {});
  /// @throws Error also kNotFound for a pattern that fits no parameter
  Lion(Sharded sharded, std::vector<Group<LionOptions>> groups);

  /// To change between steps, for example the learning rate.
  LionOptions& options(int group = 0) { return options_.at(static_cast<std::size_t>(group)); }

  std::map<std::string, double> values(int group) const override;
  void set_values(int group, const std::map<std::string, double>& values) override;

 private:
  void update(const Run& run) override;
  std::vector<LionOptions> options_;
};

}  // namespace fsdp::optim
