// SPDX-License-Identifier: Apache-2.0
/// The tensors of a checkpoint as a rank has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "archive/plan.hpp"
#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint::detail {

/// How a rank's part relates to the logical tensor.
enum class Holding {
  kSlice,     ///< elements [begin, begin + numel) of the flattened logical tensor
  kPermuted,  ///< the same of the tensor in its memory order, which is not the logical one
  kWhole,     ///< every rank has all of it
};

struct Item {
  archive::Section section = archive::Section::kModel;
  std::string name = {};
  std::vector<std::string> other_names = {};  ///< of a tied weight, or of its state
  std::vector<std::int64_t> shape = {};
  std::vector<std::int64_t> strides = {};  ///< in memory, for kPermuted
  Holding holding = Holding::kSlice;
  at::Tensor values = {};  ///< 1-D, or of any shape for kWhole
  std::int64_t begin = 0;
  /// The part of `values` for which this rank answers: no other rank writes it.
  std::int64_t answered_begin = 0;
  std::int64_t answered_numel = 0;

  at::Tensor answered() const { return values.narrow(0, answered_begin, answered_numel); }
};

/// Parameters, buffers, then the optimizer's state, in the same order on every rank.
std::vector<Item> items_of(const Sharded& sharded, const OptimizerState* optimizer);

/// The name of a state tensor: "<parameter>.<state>".
std::string state_name(const StateShard& shard);

/// safetensors' name of a dtype. @throws Error kUnsupported naming the tensor
std::string dtype_name(at::ScalarType dtype, const std::string& tensor);
/// The reverse, for the dtypes that dtype_name() returns. @throws Error kUnsupported
at::ScalarType dtype_of(const std::string& name, const std::string& tensor);

/// The logical tensor behind a permuted item, contiguous, on every rank. @collective all ranks
/// @memory the tensor twice
at::Tensor assemble(const World& world, const Item& item);

}  // namespace fsdp::checkpoint::detail
