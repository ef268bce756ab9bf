// SPDX-License-Identifier: Apache-2.0
/// Which types a parameter has in its shard, gathered, and on its way to be reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <string>
#include <vector>

#include "fsdp/engine/options.hpp"

namespace fsdp::engine {

struct Types {
  at::ScalarType shard;
  at::ScalarType param;
  at::ScalarType reduce;
  auto operator<=>(const Types&) const = default;
};

/// @throws Error kInvalidArgument for a type that makes no sense, in Options::precision or in a
/// rule
void check_precision(const Options& options);

/// Whether weights are gathered in float16, where small gradients vanish without a LossScaler.
bool gathers_float16(const Options& options);

/// `keeps_precision`: it is in a module of MixedPrecision::full_precision.
Types types_of(const at::Tensor& parameter, bool keeps_precision, const MixedPrecision& precision);

/// "BFloat16", or "BFloat16 of Float" when the shards have another type.
std::string describe(const Types& types);

/// A buffer of the module in low precision, and what is saved of it. Whichever is written brings
/// the other up to date: training writes the module's, loading the saved one.
class CastBuffer {
 public:
  CastBuffer(const at::Tensor& of_module, at::ScalarType dtype);
  void sync();
  const at::Tensor& saved() const { return saved_; }

 private:
  at::Tensor of_module_;
  at::Tensor saved_;
  std::uint32_t seen_version_;  ///< of saved_
};

}  // namespace fsdp::engine
