// SPDX-License-Identifier: Apache-2.0
/// AdamW over whole flat shards: one fused pass over memory per unit. Loshchilov and Hutter,
/// "Decoupled Weight Decay Regularization" (2019), algorithm 2; the same arithmetic as
/// torch::optim::AdamW.
#pragma once

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::optim {

/// The rates of the update, as torch::optim::AdamWOptions has them.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// The optimizer of one rank's shards. A parameter without a gradient is left alone.
///
/// *Invariants*: moments of what trains exist from construction, zero, in the ledger under kMoments;
/// creating them has no side effect on the parameters. Frozen units have none, until they train. *Thread safety*: one thread at a time.
/// *Example*: `fsdp::optim::AdamW optimizer(sharded, {.lr = 3e-4}); optimizer.step();`
class AdamW {
 public:
  /// @memory two moments of the shards' size and dtype
  /// @throws Error kInvalidArgument for a negative rate or a beta of 1 or more
  explicit AdamW(Sharded sharded, AdamWOptions options = {});
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// Updates this rank's shards from their gradients, in place: one pass over shard, gradient and
  /// moments. Local, nothing of size is allocated.
  void step();
  /// Forgets all gradients. Local.
  void zero_grad() { sharded_.zero_grad(); }
  /// To change between steps, for example the learning rate.
  AdamWOptions& options() { return options_; }
  /// Steps taken so far; advances on every rank, also where a shard is empty.
  std::int64_t steps() const { return steps_; }
  /// For resuming. @throws Error kInvalidArgument for a negative number
  void set_steps(std::int64_t steps);

  /// Views of one parameter's moments, of its shard's size; undefined where there are none.
  struct Moments {
    at::Tensor first;
    at::Tensor second;
  };
  /// `shard` is one of Sharded::parameters(). @throws Error kInvalidArgument for another tensor
  Moments moments(const at::Tensor& shard) const;
  const Sharded& sharded() const { return sharded_; }

 private:
  void make_moments(std::size_t unit, const at::Tensor& shard);

  Sharded sharded_;
  AdamWOptions options_;
  std::vector<at::Tensor> first_moments_, second_moments_;  ///< flat, one a unit
  std::int64_t steps_ = 0;
  std::int64_t ledger_bytes_ = 0;
};

}  // namespace fsdp::optim
