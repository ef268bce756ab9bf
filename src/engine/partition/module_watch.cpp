// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/module_watch.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "base/name_pattern.hpp"
#include "engine/partition/layer_members.hpp"
#include "engine/partition/module_registry.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

const void* address(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }
const void* address(const std::shared_ptr<torch::nn::Module>& module) { return module.get(); }

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace

void refuse_change(const std::string& change, const std::string& consequence) {
  fail(ErrorCode::kInvalidArgument, "[module] ", change, " after fully_shard(): ", consequence,
       ". Change a module before it is sharded. To shard it again, copy the weights inside "
       "full_parameters(), let go of this Sharded and its optimizers, put the copies back by "
       "set_data(), and call fully_shard() on the changed module");
}

ModuleWatch::ModuleWatch(torch::nn::Module& module, std::vector<std::string> ignored)
    : root_(module.weak_from_this()), ignored_(std::move(ignored)) {
  add(module, "");
}

bool ModuleWatch::is_ignored(const std::string& name) const {
  return std::ranges::any_of(
      ignored_, [&](const std::string& pattern) { return base::matches(pattern, name); });
}

std::size_t ModuleWatch::add(torch::nn::Module& module, const std::string& path) {
  const std::size_t index = nodes_.size();
  nodes_.emplace_back();
  Node node{.path = path};
  for (const auto& item : parameters_of(module)) {
    node.parameters.push_back({.name = item.key(),
                               .is = address(item.value()),
                               .is_free = is_ignored(joined(path, item.key()))});
  }
  for (const auto& item : buffers_of(module)) {
    node.buffers.push_back({.name = item.key(), .is = address(item.value())});
  }
  for (const engine::Member& member : layer_members(module)) {
    if (member.tensor->defined() && !is_ignored(joined(path, member.name))) {
      node.members.push_back(
          {.name = member.name, .member = member.tensor, .is = address(*member.tensor)});
    }
  }
  node.has_tensors = !node.parameters.empty() || !node.buffers.empty();
  for (const auto& item : children_of(module)) {
    const std::size_t child = add(*item.value(), joined(path, item.key()));
    node.children.push_back({.name = item.key(), .is = address(item.value())});
    node.child_nodes.push_back(child);
    node.has_tensors = node.has_tensors || nodes_[child].has_tensors;
  }
  nodes_[index] = std::move(node);
  return index;
}

/// One look at the module.
class ModuleWatch::Comparison {
 public:
  explicit Comparison(const ModuleWatch& watch) : watch_(watch) {}

  void compare(const Node& node, torch::nn::Module& module) const {
    if (!are_same(node.parameters, parameters_of(module))) {
      explain("parameter", node.path, node.parameters, parameters_of(module));
    }
    if (!are_same(node.buffers, buffers_of(module))) {
      explain("buffer", node.path, node.buffers, buffers_of(module));
    }
    for (const ModuleWatch::Member& member : node.members) {
      if (address(*member.member) != member.is) {
        refuse_change("another tensor was assigned to \"" + joined(node.path, member.name) + "\"",
                      "forward uses it, and the shards have the one that was there");
      }
    }
    const ModuleRegistry& children = children_of(module);
    if (!are_same(node.children, children)) {
      explain_children(node, children);
    }
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const Entry& entry = node.children[i];
      const bool is_in_place = i < children.size() && address(children[i].value()) == entry.is;
      const auto* child = is_in_place ? &children[i].value() : children.find(entry.name);
      if (child != nullptr && address(*child) == entry.is) {
        compare(watch_.nodes_[node.child_nodes[i]], **child);
      }
    }
  }

 private:
  template <class Registry>
  static bool are_same(const std::vector<Entry>& entries, const Registry& registry) {
    bool are_same = entries.size() == registry.size();
    for (std::size_t i = 0; are_same && i < entries.size(); ++i) {
      are_same = entries[i].is_free || entries[i].is == address(registry[i].value());
    }
    return are_same;
  }

  void explain(const std::string& kind, const std::string& path, const std::vector<Entry>& entries,
               const TensorRegistry& registry) const {
    for (const auto& item : registry) {
      const std::string name = joined(path, item.key());
      const auto known = std::ranges::find(entries, item.key(), &Entry::name);
      if (watch_.is_ignored(name) || !item.value().defined()) {
        continue;
      }
      if (known == entries.end()) {
        refuse_change(kind + " \"" + name + "\" was registered",
                      "it is in no shard, so each rank has its own, and no checkpoint has it");
      }
      if (known->is != address(item.value())) {
        refuse_change(kind + " \"" + name + "\" was replaced",
                      "the one that was there is sharded and saved");
      }
    }
    for (const Entry& entry : entries) {
      if (!entry.is_free && !registry.contains(entry.name)) {
        refuse_change(kind + " \"" + joined(path, entry.name) + "\" was removed",
                      "it is still sharded and saved");
      }
    }
  }

  /// Of modules without tensors, as Dropout, nothing is sharded or saved.
  void explain_children(const Node& node, const ModuleRegistry& registry) const {
    for (const auto& item : registry) {
      const std::string name = joined(node.path, item.key());
      const auto known = std::ranges::find(node.children, item.key(), &Entry::name);
      if (known != node.children.end() && known->is == address(item.value())) {
        continue;
      }
      if (known != node.children.end() && had_tensors(node, *known)) {
        refuse_change("module \"" + name + "\" was replaced",
                      "the weights of the one that was there are sharded and saved, not its own");
      }
      if (has_tensors(*item.value(), name)) {
        refuse_change(
            "module \"" + name + "\" was registered",
            "its weights are in no shard, so each rank has its own, and no checkpoint has them");
      }
    }
    for (const Entry& entry : node.children) {
      if (!registry.contains(entry.name) && had_tensors(node, entry)) {
        refuse_change("module \"" + joined(node.path, entry.name) + "\" was removed",
                      "its weights are still sharded and saved");
      }
    }
  }

  bool had_tensors(const Node& node, const Entry& child) const {
    const auto index = static_cast<std::size_t>(&child - node.children.data());
    return watch_.nodes_[node.child_nodes[index]].has_tensors;
  }

  bool has_tensors(const torch::nn::Module& module, const std::string& path) const {
    const auto parameters = module.named_parameters();
    return !module.buffers().empty() ||
           std::any_of(parameters.begin(), parameters.end(), [&](const auto& item) {
             return !watch_.is_ignored(joined(path, item.key()));
           });
  }

  const ModuleWatch& watch_;
};

void ModuleWatch::check() const {
  if (const auto root = root_.lock()) {
    Comparison(*this).compare(nodes_.front(), *root);
  }
}

}  // namespace fsdp::engine
