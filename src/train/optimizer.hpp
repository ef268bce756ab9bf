// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/optim/flat_optimizer.hpp"
#include "train/config.hpp"

namespace fsdp::train::detail {

/// The optimizer of a run, whichever it is.
class Optimizer {
 public:
  explicit Optimizer(std::unique_ptr<optim::FlatOptimizer> rule) : rule_(std::move(rule)) {}
  /// Updates the shards from their gradients with learning rate `lr`.
  void step(double lr);
  /// What checkpoints save and load; must not outlive the optimizer.
  std::unique_ptr<checkpoint::OptimizerState> state() { return checkpoint::state_of(*rule_); }

 private:
  std::unique_ptr<optim::FlatOptimizer> rule_;
};

/// @collective all ranks
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Sharded& sharded);

}  // namespace fsdp::train::detail
