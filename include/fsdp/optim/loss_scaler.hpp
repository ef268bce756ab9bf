// SPDX-License-Identifier: Apache-2.0
/// Dynamic loss scaling for float16, whose gradients vanish below 6e-8: the loss is multiplied by a
/// large power of two before backward, gradients are divided by it after. A step whose gradients
/// are not finite on any rank is skipped on all, and the scale is halved. Micikevicius et al.,
/// "Mixed Precision Training" (2018); rules and defaults of torch.amp.GradScaler.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/optim/finite.hpp"

namespace fsdp {

/// How the scale moves.
struct LossScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  /// Steps in a row with finite gradients before the scale grows.
  int growth_interval = 2000;
  /// False: scale() and unscale_() leave everything as it is, so that one loop serves all types.
  bool enabled = true;
};

/// All that a checkpoint has to keep of it.
struct LossScalerState {
  double scale = 0;
  std::int64_t growth_tracker = 0;  ///< finite steps since the scale last moved
};

/// The scale of one training loop.
///
/// *Invariants*: the scale is the same on all ranks. *Thread safety*: one thread at a time.
/// *Example*:
///
///     fsdp::LossScaler scaler(sharded);
///     scaler.scale(loss).backward();
///     scaler.unscale_(/*max_norm=*/1.0);   // clips too
///     optimizer.step();                    // does nothing when the step is skipped
///     scaler.update();
class LossScaler {
 public:
  /// @throws Error kInvalidArgument for a scale or factors that would not work
  explicit LossScaler(Sharded sharded, LossScalerOptions options = {});

  /// `loss` times the scale, in float32 at least. Give it a loss in float32: in float16 its own
  /// gradient, the scale, is infinite from 65536 on, so the scale would be halved once.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides this rank's gradients by the scale; with `max_norm`, clips them by the 2-norm of all
  /// gradients in the same pass. Where a rank has one that is not finite, gradients are forgotten
  /// on all ranks, so that optimizers leave weights, moments and counters alone. Once a step.
  /// @collective all ranks, one number each; a second one when a step is skipped, to name the
  /// parameter @blocks until every rank is here
  /// @throws Error kInvalidArgument when called twice without update(), or for a max_norm that is
  /// not positive
  GradientCheck unscale_(std::optional<double> max_norm = {});

  /// Moves the scale by what unscale_() found. Local: all ranks know. Call it after the step.
  /// @throws Error kInvalidArgument without a call of unscale_() before
  void update();

  double current_scale() const { return options_.enabled ? state_.scale : 1.0; }
  LossScalerState state() const { return state_; }
  /// For resuming. @throws Error kInvalidArgument for a scale that is not positive and finite
  void set_state(LossScalerState state);

 private:
  Sharded sharded_;
  LossScalerOptions options_;
  LossScalerState state_;
  std::optional<GradientCheck> last_;
};

}  // namespace fsdp
