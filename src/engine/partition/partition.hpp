// SPDX-License-Identifier: Apache-2.0
/// Which parameter belongs to which unit, and which modules cannot be sharded at all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/partition/module_watch.hpp"
#include "engine/partition/script_watch.hpp"
#include "engine/unit/bundle.hpp"
#include "engine/unit/unit.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace torch::jit {
struct Module;
}

namespace fsdp::engine {

inline constexpr const char* kRootName = "(root)";
inline constexpr const char* kReplicatedName = "(replicated)";

struct Partition {
  /// The root first if it has parameters, then the others in the module's order, then what
  /// Options::replicate_below put together. See bundle.hpp.
  std::vector<Unit> units;
  Bundles bundles;                ///< of them
  std::optional<int> root;        ///< bundle of the root, none when everything is claimed
  std::optional<int> replicated;  ///< bundle of what is replicated for being small
  /// The module's buffers, for the initial broadcast.
  std::vector<NamedBuffer> buffers;
  /// Which of them MixedPrecision::buffers casts.
  std::vector<bool> low_buffers;
  std::vector<at::Tensor> ignored;  ///< parameters that Options::ignore leaves out
  ModuleWatch watch;                ///< of the module
  ScriptWatch script_watch;         ///< of it, if it is one of TorchScript
};

/// @throws Error kInvalidArgument: no parameters, an Embedding with max_norm, a member that is not
/// the registered tensor, a gradient that is there already, memory that something else holds,
/// several devices; kNotFound and kUnsupported, see fully_shard()
Partition partition(torch::nn::Module& module, const Options& options);
Partition partition(const torch::jit::Module& module, const Options& options);
Partition partition(const TensorTree& tree, const Options& options);

}  // namespace fsdp::engine
