// SPDX-License-Identifier: Apache-2.0
/// An exponential moving average of the weights, on shards: what is evaluated and published in
/// place of the last weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::optim {

/// A parameter's average, of its shard's size and dtype.
struct NamedAverage {
  std::string name;
  at::Tensor shard;
  at::Tensor average;
  int unit = 0;  ///< of the shard, as in NamedShard
};

/// Averages of all parameters that train: average = decay * average + (1 - decay) * weight. One
/// that is unfrozen later joins with its weights of that moment.
///
/// *Invariants*: averages exist from construction, equal to the weights. *Thread safety*: one
/// thread at a time. *Example*:
///
///     fsdp::optim::Ema ema(sharded, 0.999);
///     optimizer.step();
///     ema.update();
///     { const auto averaged = ema.swap_in(); evaluate(model); }
class Ema {
 public:
  /// @memory one more copy of the shards, in the ledger and the promise with the moments
  /// @throws Error kInvalidArgument unless decay is in [0, 1)
  Ema(Sharded sharded, double decay);
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// Takes the present weights in: one pass over shards and averages. Call after each step. Local.
  /// @throws Error kInvalidArgument while the averages are swapped in
  void update();

  /// While it lives the module's weights are the averages and the averages are the weights. The
  /// optimizer must not step meanwhile.
  class Scope {
   public:
    /// Ends the scope. An error, as of a peer that is gone, is thrown here and logged by ~Scope().
    void end();
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Ema;
    explicit Scope(Ema& ema);
    Ema* ema_;
  };
  /// Exchanges them element by element, now and at the end. Save inside to publish the averages as
  /// weights. @collective all ranks, both ends: shards in shared memory wait for their readers
  /// @memory nothing of size @throws Error kInvalidArgument when they are swapped in already
  [[nodiscard]] Scope swap_in();

  double decay() const { return decay_; }
  void set_decay(double decay);
  /// The averages, by name; for checkpoint::with_averages().
  const std::vector<NamedAverage>& averages() const { return averages_; }
  /// Makes these the parameters that have averages, equal to the present weights where there was
  /// none. All others that train join anew with the next update(). For checkpoints.
  void cover(const std::vector<std::string>& names);
  const Sharded& sharded() const { return sharded_; }

 private:
  void join(const NamedShard& parameter);
  void join_new();
  void exchange();

  Sharded sharded_;
  double decay_;
  std::vector<NamedAverage> averages_;
  std::vector<NamedAverage> left_;  ///< by cover(): memory for when they join again
  HeldMemory memory_;
  bool is_swapped_in_ = false;
};

}  // namespace fsdp::optim
