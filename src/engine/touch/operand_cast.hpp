// SPDX-License-Identifier: Apache-2.0
/// Mixed precision at the operators: what comes with a weight gets the weight's type, and results
/// get the type that was asked for. See fsdp::MixedPrecision.
///
/// NOTE [Casting at the touch]
/// The gathered weight is bfloat16, say, and the activation that meets it float32. The operator is
/// caught by the touch fallback, above autograd, so a cast made there is recorded like one that the
/// user wrote: gradients come back in the activation's own type. Recomputation in backward runs
/// through the same place and casts alike. Not cast are
///   - weights themselves, integers, masks, and what the operator writes,
///   - the running statistics of a norm, which kernels write though no schema says so,
///   - operands of ..._backward operators: autograd saved them in the types that kernels want,
///   - anything where a type is the operator's subject (to, copy_, result_type).
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>

#include "engine/touch/touch.hpp"

namespace fsdp::engine {

/// What casting needs to know of an operator; looked up once.
struct CastTraits {
  bool is_exempt = false;
  bool is_norm = false;
  std::uint64_t fixed = 0;  ///< bit i: argument i keeps its type
};
CastTraits cast_traits(const c10::FunctionSchema& schema);

/// Casts around one operator that takes weights of type `weights`.
class OperatorCast {
 public:
  OperatorCast(const c10::FunctionSchema& schema, const CastTraits& traits, OperandCast rule,
               at::ScalarType weights)
      : schema_(schema), traits_(traits), rule_(rule), weights_(weights) {}

  void operands(torch::jit::Stack& stack);
  void results(torch::jit::Stack& stack) const;

 private:
  void operand(c10::IValue& value);
  bool is_operand(const at::Tensor& tensor) const;

  const c10::FunctionSchema& schema_;
  const CastTraits& traits_;
  OperandCast rule_;
  at::ScalarType weights_;
  bool has_other_tensor_ = false;
  std::optional<at::ScalarType> given_;  ///< of the first operand that was cast
};

}  // namespace fsdp::engine
