// SPDX-License-Identifier: Apache-2.0
/// Which parameter belongs to which unit, and which modules cannot be sharded at all.
#pragma once

#include <string>
#include <vector>

#include "engine/unit.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace torch::jit {
struct Module;
}

namespace fsdp::engine {

inline constexpr const char* kRootName = "(root)";

struct Partition {
  /// The root first if it has parameters, then the others in the module's order. A unit whose
  /// parameters have several dtypes is split into one unit a dtype.
  std::vector<Unit> units;
  /// Index of the root unit, -1 when everything is claimed.
  int root = -1;
  /// The module's buffers, for the initial broadcast.
  std::vector<NamedBuffer> buffers;
  /// Which of them MixedPrecision::buffers casts.
  std::vector<bool> low_buffers;
};

/// @throws Error kInvalidArgument: no parameters, an Embedding with max_norm, a member that is not
/// the registered tensor, a gradient that is there already, memory that something else holds,
/// several devices; kNotFound and kUnsupported, see fully_shard()
Partition partition(torch::nn::Module& module, const Options& options);
Partition partition(const torch::jit::Module& module, const Options& options);

}  // namespace fsdp::engine
