// SPDX-License-Identifier: Apache-2.0
/// Mixed precision: shards in full precision, which the optimizer updates, and gathered weights in
/// a low one, which operators take. Half the bytes travel and half the memory holds what is
/// gathered. See docs/how-to/mixed-precision.md.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "fsdp/engine/units.hpp"

namespace fsdp {

/// Every BatchNorm, whose statistics do not survive in low precision.
Units batch_norms();
/// Every BatchNorm, InstanceNorm, LayerNorm, GroupNorm and LocalResponseNorm.
Units norm_layers();

/// In which types a sharded module lives. Without any, each parameter keeps its own; one that is
/// bfloat16 or float16 and trains has float32 shards all the same, see low_precision_shards.
///
/// Example: `Options{.precision = {.param = at::kBFloat16}}`.
struct MixedPrecision {
  /// What floating-point weights are gathered as: bfloat16, float16 or float32. An operator that
  /// takes such a weight has its other floating-point tensors cast to this type first, which
  /// autograd records; integers and masks are left alone. float16 needs a fsdp::LossScaler.
  std::optional<at::ScalarType> param = {};
  /// What gradients of float32 shards are collected and sent in. Default float32. With bfloat16 or
  /// float16 half the bytes travel; sums are in float32 still, so each rank's gradient is rounded
  /// once: to 2^-9 of itself, or 2^-12, where float16 also loses what is above 65504 or below 6e-8.
  std::optional<at::ScalarType> reduce = {};
  /// What the results of operators that take a weight and another tensor are cast to, as float32
  /// for a loss, or for a residual stream, in full precision. Default: as they come.
  std::optional<at::ScalarType> output = {};
  /// What floating-point buffers are held in while training. Default: their own type. They are
  /// saved in the type that they came in.
  std::optional<at::ScalarType> buffers = {};
  /// Modules whose parameters and buffers stay as they are (float32 where they are less), and whose
  /// operators get their operands so. A norm among them returns the type it was given. They become
  /// units of their own. Default: BatchNorm.
  Units full_precision = batch_norms();
  /// Let bfloat16 and float16 parameters have shards of the same type: half the memory, but small
  /// updates are rounded away (1.0 stays 1.0 under AdamW with a rate of 1e-3).
  bool low_precision_shards = false;
  /// Train in float16 without a LossScaler, whose gradients then vanish below 6e-8.
  bool allow_unscaled = false;
};

}  // namespace fsdp
