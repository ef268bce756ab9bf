// SPDX-License-Identifier: Apache-2.0
/// Notices what a module gets or loses after it was sharded.
///
/// NOTE [a module that changes after it was sharded]
/// Units and shards are made once, of the tensors that the module has then. What comes later, by
/// register_parameter(), register_module(), replace_module() or an assignment to a member, lives in
/// no shard: each rank trains its own, and no checkpoint has it. What is gone stays in the shards
/// and in files. Four sources show it:
///
///   the registries             entry by entry and by address, before a forward and a save: here
///   members of torch::nn's     likewise, because forward uses the member, and an assignment leaves
///   layers                     the registry behind: here
///   slots of a TorchScript     likewise: see script_watch.hpp
///   module's objects
///   the graph of a backward    a training leaf that is in no shard: finds members of a program's
///   own
///                              classes, which nothing else shows. Of the shape of a weight that
///                              used to be taken and was not it is an error; else it may be an
///                              input, and is told of, once. See strangers.hpp
///
/// A member of a program's own class that is assigned another sharded weight leaves one trace: the
/// one is taken no more, the other as often as both before. Modules that choose their layers may do
/// so too, so it is told of, once: Residency::tell_of_stand_ins().
///
/// Comparing allocates nothing, and takes two loads per entry.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp::engine {

/// Throws the error that names a change and says how to shard again.
[[noreturn]] void refuse_change(const std::string& change, const std::string& consequence);

/// *Thread safety*: immutable; the module must not change meanwhile.
class ModuleWatch {
 public:
  /// Sees nothing.
  ModuleWatch() = default;
  /// `ignored`: Options::ignore, names that may come, go and change.
  ModuleWatch(torch::nn::Module& module, std::vector<std::string> ignored);

  /// @throws Error kInvalidArgument which names what changed since. Nothing when the module is gone
  void check() const;

 private:
  struct Entry {
    std::string name;      ///< within its module
    const void* is = {};   ///< the tensor's or module's address
    bool is_free = false;  ///< may be anything
  };
  struct Member {
    std::string name;
    const at::Tensor* member;  ///< to be read only while its module is known to live
    const void* is;
  };
  struct Node {
    std::string path;
    std::vector<Entry> parameters = {}, buffers = {}, children = {};
    std::vector<Member> members = {};
    std::vector<std::size_t> child_nodes = {};  ///< by child
    bool has_tensors = false;                   ///< or a module inside of it has
  };
  class Comparison;

  std::size_t add(torch::nn::Module& module, const std::string& path);
  bool is_ignored(const std::string& name) const;

  std::weak_ptr<torch::nn::Module> root_;
  std::vector<std::string> ignored_;
  std::vector<Node> nodes_;  ///< the root first
};

}  // namespace fsdp::engine
