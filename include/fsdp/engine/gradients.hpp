// SPDX-License-Identifier: Apache-2.0
/// When gradients are reduced over the ranks, and what their sum is divided by. See
/// docs/how-to/normalize-gradients.md and docs/how-to/accumulate-gradients.md.
#pragma once

#include <optional>
#include <string>

namespace fsdp {

/// Which collectives a backward ends with. Any mixture within one step gives the same gradients;
/// the last backward before the optimizer's step must be kEveryBackward.
enum class GradientSync {
  /// Gradients are reduced over all ranks: Sharded::parameters() have them when backward returns.
  kEveryBackward,
  /// They are reduced inside a replica and wait there, at 1/s, for a backward with
  /// kEveryBackward: replicas talk once per step. Without replicas the same as kEveryBackward; of
  /// kReplicate units, the same as kDeferAll.
  kDeferReplicate,
  /// Nothing moves: gradients wait whole, one copy of the model's trainable elements.
  kDeferAll,
};

/// What the sum of all ranks' gradients is divided by, whatever the strategy and the mesh: the
/// number of ranks, nothing, or any positive number, such as the samples or tokens of a step.
///
/// *Thread safety*: a value. *Example*:
///
///     fsdp::Options options{.gradient_divisor = fsdp::GradientDivisor::kSum};
///     sharded.set_gradient_divisor(tokens);  // of all ranks; each loss is a sum over its own
class GradientDivisor {
 public:
  static const GradientDivisor kMean;  ///< the number of ranks: gradients are the mean over ranks
  static const GradientDivisor kSum;   ///< 1

  // NOLINTNEXTLINE(google-explicit-constructor): any number is one
  constexpr GradientDivisor(double divisor) : divisor_(divisor) {}

  /// The number for a world of `ranks`.
  constexpr double among(int ranks) const { return divisor_.value_or(ranks); }
  bool operator==(const GradientDivisor&) const = default;

 private:
  constexpr GradientDivisor() = default;
  std::optional<double> divisor_;  ///< empty: the number of ranks
};
inline constexpr GradientDivisor GradientDivisor::kMean{};
inline constexpr GradientDivisor GradientDivisor::kSum{1.0};

/// "the number of ranks", or the number.
std::string to_string(const GradientDivisor& divisor);

}  // namespace fsdp
