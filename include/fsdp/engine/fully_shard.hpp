// SPDX-License-Identifier: Apache-2.0
/// Shards a module's parameters over all ranks and trains it as if nothing had happened. The module
/// keeps its type, its members and its forward; what changes is where its weights live. See
/// docs/explanation/life-of-a-parameter.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/world.hpp"
#include "fsdp/engine/options.hpp"
#include "fsdp/engine/sharded.hpp"
#include "fsdp/engine/shards.hpp"

namespace torch::jit {
struct Module;
}

namespace torch::nn {
class Module;
}

namespace fsdp {

/// Shards `module` over all ranks of `world`. The module's tensors keep their identity; from now on
/// an operator that takes a weight gathers it first. Uses one process-wide dispatcher fallback for
/// DispatchKey::DeferredInit.
/// @collective all ranks, with the same architecture and options
/// @blocks until every rank is here
/// @memory shards + slots + reduce buffers, see Report::promise; the module's own weights go
/// unit by unit
/// @throws Error kInvalidArgument when the module has no parameters, when they lie on several
/// devices, when something outside the module holds a weight's memory, when one has a gradient,
/// is sharded already or is no leaf, when a strategy needs a mesh and there is none, or the
/// reverse, or the mesh is of another world, when an Embedding has max_norm, when a weight was
/// assigned to a member instead of tied, or for a negative option; kNotFound for a path of
/// units_listed() that is not there (in Options::rules: not a unit) or a pattern of Options::ignore
/// without a match; kUnsupported for a parameter that is not strided or is complex and trains, for
/// Store::kAliased where ranks share no memory, or with MemoryOptions::offload; kMismatch, on all
/// ranks, naming the first parameter, rule or option in which ranks differ
Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const World& world,
                    Options options = {});

/// The same for a module holder, such as `torch::nn::Sequential` or a `TORCH_MODULE` type.
template <class Holder>
  requires requires { typename Holder::ContainedType; }
Sharded fully_shard(const Holder& holder, const World& world, Options options = {}) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(holder.ptr()), world,
                     std::move(options));
}

/// The same for a TorchScript module; units are chosen by name.
Sharded fully_shard(const torch::jit::Module& module, const World& world, Options options = {});

/// What there is to shard, as names and tensors: any kind of module, of any language, comes down to
/// this.
///
/// *Thread safety*: a value. *Example*:
///
///     fsdp::TensorTree tree{.modules = {"encoder", "head"},
///                           .parameters = {{"encoder.weight", w}, {"head.weight", v}}};
///     auto sharded = fsdp::fully_shard(tree, world, {.units = fsdp::units_listed({"encoder"})});
struct TensorTree {
  /// Paths of all modules that hold anything, parents before children; "" need not be said.
  std::vector<std::string> modules = {};
  /// Leaves by path, "encoder.weight". A tied weight goes by each of its names.
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  std::vector<NamedBuffer> buffers = {};
};

/// The same for the tensors of a tree, which is not needed any more after the call. They keep their
/// identity, so whoever holds them computes with gathered weights. Nothing notices that the module
/// behind the tree changes later: its owner has to. Units are chosen by name.
/// @throws Error kInvalidArgument also for a name that is there twice, or in no module of the tree
Sharded fully_shard(const TensorTree& tree, const World& world, Options options = {});

/// Ties `name` of `to` to `name` of `from` so that both names hold one tensor: the registry and,
/// for torch::nn layers, the member. Call before sharding and before building an optimizer.
/// @throws Error kInvalidArgument when shapes differ or either is sharded already, kNotFound when
/// there is no such parameter
void tie_weights(torch::nn::Module& from, const std::string& from_name, torch::nn::Module& to,
                 const std::string& to_name);

}  // namespace fsdp
