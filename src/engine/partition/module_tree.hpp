// SPDX-License-Identifier: Apache-2.0
/// A module as names and tensors, whatever kind of module it is, and what cannot be sharded of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace fsdp::engine {

/// What both kinds of module come down to.
struct ModuleTree {
  struct Node {
    std::string name;
    const torch::nn::Module* module;  ///< null for TorchScript
  };
  std::vector<Node> modules;  ///< parents before children
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<NamedBuffer> buffers;
  /// Parameters that nobody but a registry holds, where a member of a C++ class should: in none of
  /// TorchScript, nor of torch's own containers.
  std::set<std::string> without_member;
};

/// @throws Error kInvalidArgument for an Embedding with max_norm and for a member that is not the
/// registered tensor
ModuleTree read_tree(torch::nn::Module& module);
ModuleTree read_tree(const torch::jit::Module& module);
/// @throws Error kInvalidArgument for names that are there twice or in no module
ModuleTree read_tree(const TensorTree& tree);

/// Takes out what Options::ignore names, and returns it. @throws Error kNotFound for a pattern
/// without a parameter
std::vector<at::Tensor> drop_ignored(ModuleTree& tree, const std::vector<std::string>& patterns);

/// @throws Error kInvalidArgument and kUnsupported for parameters that cannot be sharded: see
/// fully_shard()
void check_tree(const ModuleTree& tree);

/// @throws Error kNotFound, with the modules that come nearest, when Options::units fit none of the
/// tree, the outermost included
void check_units_fit(const ModuleTree& tree, const Units& units);

/// "h.0" of "h.0.weight", "" of "weight".
std::string parent_of(const std::string& path);

/// Whether a module or parameter is `module` or lies inside of it; everything is inside "".
bool is_inside(const std::string& path, const std::string& module);

}  // namespace fsdp::engine
