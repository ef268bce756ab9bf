// SPDX-License-Identifier: Apache-2.0
/// Gradients that are not finite: found on one rank, known on all, so that all skip the step.
#pragma once

#include <optional>
#include <string>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp {

/// A gradient with an element that is not finite.
struct BadGradient {
  std::string parameter;  ///< its name
  int rank = -1;          ///< that has the element in its shard
  /// The first rank whose own gradient was not finite before the sum over ranks: look at its data.
  /// -1 where each was finite, so that their sum overflowed, or where nothing is known of it.
  int made_by = -1;
};

/// What one look at all gradients found.
struct GradientCheck {
  double norm = 0;  ///< their 2-norm over all ranks, before clipping; not finite when one is not
  bool is_skipped = false;              ///< gradients were forgotten on all ranks
  std::optional<BadGradient> bad = {};  ///< why
};

/// The first parameter, in the module's order, whose gradient is not finite on some rank, and the
/// first such rank; the same on all ranks. Nothing when all are finite.
/// @collective all ranks, one number each @blocks @memory none of size
std::optional<BadGradient> find_bad_gradient(const Sharded& sharded);

/// Makes all ranks skip the step that comes: names the parameter in a log line and forgets all
/// gradients, whereupon optimizers leave weights, moments and step counters alone. For when
/// `norm`, which is the same on all ranks, is not finite. Nothing happens, and the result says so,
/// where Options::skip_non_finite is off.
/// @collective all ranks @blocks
GradientCheck skip_step(const Sharded& sharded, double norm);

}  // namespace fsdp
