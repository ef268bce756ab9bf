// SPDX-License-Identifier: Apache-2.0
/// Which types a parameter has in its shard, gathered, and on its way to be reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <string>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/precision.hpp"

namespace fsdp::engine {

struct Types {
  at::ScalarType shard;
  at::ScalarType param;
  at::ScalarType reduce;
  auto operator<=>(const Types&) const = default;
};

/// @throws Error kInvalidArgument for a type that makes no sense
void check_precision(const MixedPrecision& precision);

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
