// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/train/config.hpp"

namespace fsdp::train::detail {

/// The optimizer of a run, whichever it is.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates the shards from their gradients with learning rate `lr`.
  virtual void step(double lr) = 0;
  /// What checkpoints save and load; must not outlive the optimizer.
  virtual std::unique_ptr<checkpoint::OptimizerState> state() = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Sharded& sharded);

/// Elements of optimizer state per parameter element.
int moments(OptimizerKind kind);

}  // namespace fsdp::train::detail
