// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/module_tree.hpp"

#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <unordered_map>

#include "base/name_pattern.hpp"
#include "base/near_names.hpp"
#include "engine/partition/layer_members.hpp"
#include "engine/partition/module_registry.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// What a parameter must be by itself.
void check_parameters(const ModuleTree& tree) {
  FSDP_CHECK(!tree.parameters.empty(), ErrorCode::kInvalidArgument,
             "[fully_shard] the module has no parameters");
  const auto& [first_name, first] = tree.parameters.front();
  for (const auto& [name, tensor] : tree.parameters) {
    FSDP_CHECK(
        !tensor.key_set().has(kTouchKey) || was_deferred(tensor), ErrorCode::kInvalidArgument,
        "[fully_shard] parameter \"", name,
        "\" is sharded already, with this module or with another one that shares it: keep "
        "that Sharded. Layers are not sharded one by one before the whole, as FSDP in Python "
        "is nested: shard the whole once, Options::units says what is gathered together. If "
        "the Sharded is gone, its weights are gone with it; copies made inside "
        "full_parameters() come back by set_data()");
    FSDP_CHECK(!tensor.requires_grad() || !tensor.is_complex(), ErrorCode::kUnsupported,
               "[fully_shard] parameter \"", name, "\" is ", c10::toString(tensor.scalar_type()),
               " and requires grad, but complex gradients cannot be reduced: hold it as "
               "view_as_real(), or freeze it");
    FSDP_CHECK(tensor.layout() == c10::kStrided, ErrorCode::kUnsupported,
               "[fully_shard] parameter \"", name, "\" is not a strided tensor");
    FSDP_CHECK(tensor.device() == first.device(), ErrorCode::kInvalidArgument,
               "[fully_shard] parameter \"", name, "\" is on ", tensor.device(), " but \"",
               first_name, "\" on ", first.device(), ": one device a rank");
    FSDP_CHECK(tensor.is_leaf(), ErrorCode::kInvalidArgument, "[fully_shard] parameter \"", name,
               "\" is the result of an operation that autograd recorded, not a leaf");
    FSDP_CHECK(!tensor.grad().defined(), ErrorCode::kInvalidArgument, "[fully_shard] parameter \"",
               name,
               "\" has a gradient already: shard before the first backward, or call zero_grad()");
  }
}

/// How many hold a storage. Once Python has looked at one, an object of its own stays for it, which
/// nobody need hold.
std::size_t holders(const c10::StorageImpl& storage) {
  const std::size_t all =
      c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(&storage));
  return all - (storage.pyobj_slot()->has_unique_reference() ? 1 : 0);
}

/// How many tensors of this module use each storage: what is more, somebody else holds.
void check_aliases(const ModuleTree& tree) {
  std::unordered_map<const c10::StorageImpl*, std::set<const c10::TensorImpl*>> users;
  const auto count = [&](const at::Tensor& tensor) {
    users[tensor.storage().unsafeGetStorageImpl()].insert(tensor.unsafeGetTensorImpl());
  };
  for (const auto& [name, tensor] : tree.parameters) {
    count(tensor);
  }
  for (const auto& [name, buffer] : tree.buffers) {
    if (buffer.has_storage()) {
      count(buffer);
    }
  }
  for (const auto& [name, tensor] : tree.parameters) {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const std::size_t held = holders(*storage);
    const std::size_t expected = users[storage].size();
    FSDP_CHECK(held == expected || !tensor.is_view(), ErrorCode::kInvalidArgument,
               "[fully_shard] parameter \"", name,
               "\" is a view of another tensor, whose memory would stay: register its clone(), "
               "which keeps the strides");
    FSDP_CHECK(held == expected, ErrorCode::kInvalidArgument,
               "[fully_shard] the memory of parameter \"", name, "\" is used by ", held,
               " tensors, of which the module has ", expected,
               ": a view, a frozen TorchScript copy or a detached alias made before sharding would "
               "keep the old weights. Make such views after fully_shard, or drop them first");
  }
}

/// `registered`: what the module of `path` has under the member's name.
void check_is_registered(const torch::nn::Module& root, const std::string& path,
                         const Member& member, const at::Tensor& registered) {
  if (registered.is_same(*member.tensor)) {
    return;
  }
  std::string source;
  for (const auto& parameter : root.named_parameters()) {
    if (parameter.value().is_same(*member.tensor)) {
      source = parameter.key();
    }
  }
  fail(ErrorCode::kInvalidArgument, "[fully_shard] \"",
       path.empty() ? member.name : path + "." + member.name,
       "\" as forward uses it is not the registered parameter",
       source.empty() ? "" : ", it is \"" + source + "\"",
       ": an assignment to the member does not tie weights, the registered one would never "
       "train. Use fsdp::tie_weights(from, \"weight\", to, \"weight\")");
}

void check_members(torch::nn::Module& root) {
  for (const auto& item : root.named_modules("", /*include_self=*/true)) {
    torch::nn::Module& module = *item.value();
    FSDP_CHECK(!writes_weights_in_forward(module), ErrorCode::kInvalidArgument, "[fully_shard] \"",
               item.key(),
               "\" has max_norm: its forward writes the weights, which each rank would do on its "
               "own gathered copy. Normalise the weights after the optimizer's step instead");
    const auto registered = module.named_parameters(/*recurse=*/false);
    for (const Member& member : layer_members(module)) {
      const at::Tensor* entry = registered.find(member.name);
      if (entry != nullptr && member.tensor->defined()) {
        check_is_registered(root, item.key(), member, *entry);
      }
    }
  }
}

}  // namespace

void check_units_fit(const ModuleTree& tree, const Units& policy) {
  if (policy.is_default()) {
    return;
  }
  std::vector<std::string> names;
  bool has_types = false;
  for (const ModuleTree::Node& node : tree.modules) {
    std::int64_t numel = 0;
    for (const auto& [name, tensor] : tree.parameters) {
      numel += is_inside(name, node.name) ? tensor.numel() : 0;
    }
    if (policy.claims({.name = node.name, .module = node.module, .numel = numel})) {
      return;
    }
    if (!node.name.empty()) {
      names.push_back(node.name);
    }
    has_types = has_types || node.module != nullptr;
  }
  const std::string& description = policy.description();
  const std::size_t quote = description.find('"');
  const std::string wanted =
      quote == std::string::npos
          ? description
          : description.substr(quote + 1, description.rfind('"') - quote - 1);
  const std::size_t count = names.size();
  const std::string near = base::near_names_text(wanted, names, 5);
  fail(ErrorCode::kNotFound, "[fully_shard] Options::units are ", description,
       ", which fit none of ", count, " modules", near.empty() ? "" : ", such as " + near,
       has_types ? ""
                 : ". What is no C++ module (TorchScript, Python) has names and no C++ types: use "
                   "units_matching()",
       ". Paths are those of named_modules(), and a pattern fits the whole of one");
}

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

bool is_inside(const std::string& path, const std::string& module) {
  return module.empty() || path == module ||
         (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

std::vector<at::Tensor> drop_ignored(ModuleTree& tree, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const auto is_ignored = [&](const auto& parameter) {
      return base::matches(pattern, parameter.first);
    };
    if (std::ranges::none_of(tree.parameters, is_ignored)) {
      std::vector<std::string> names;
      for (const auto& parameter : tree.parameters) {
        names.push_back(parameter.first);
      }
      const std::string near = base::near_names_text(pattern, names);
      fail(ErrorCode::kNotFound, "[fully_shard] Options::ignore has \"", pattern,
           "\", which is no parameter's name", near.empty() ? "" : ", nearest are " + near,
           "; names are those of named_parameters(), and * stands for any text");
    }
  }
  std::vector<at::Tensor> dropped;
  std::erase_if(tree.parameters, [&](const auto& parameter) {
    const bool is_ignored = std::ranges::any_of(patterns, [&](const std::string& pattern) {
      return base::matches(pattern, parameter.first);
    });
    if (is_ignored) {
      dropped.push_back(parameter.second);
    }
    return is_ignored;
  });
  return dropped;
}

void check_tree(const ModuleTree& tree) {
  check_parameters(tree);
  check_aliases(tree);
}

ModuleTree read_tree(torch::nn::Module& module) {
  check_members(module);
  ModuleTree tree;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    torch::nn::Module* of = item.value().get();
    tree.modules.push_back({item.key(), of});
    if (dynamic_cast<const torch::nn::ParameterDictImpl*>(of) != nullptr ||
        dynamic_cast<const torch::nn::ParameterListImpl*>(of) != nullptr) {
      continue;
    }
    for (const auto& parameter : parameters_of(*of)) {
      // Here and now nothing of this library holds one, later an optimizer may.
      if (parameter.value().defined() && parameter.value().use_count() == 1) {
        tree.without_member.insert(item.key().empty() ? parameter.key()
                                                      : item.key() + "." + parameter.key());
      }
    }
  }
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) {
      tree.parameters.emplace_back(item.key(), item.value());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      tree.buffers.push_back({item.key(), item.value()});
    }
  }
  return tree;
}

ModuleTree read_tree(const TensorTree& given) {
  ModuleTree tree;
  std::set<std::string> modules = {""};
  tree.modules.push_back({"", nullptr});
  for (const std::string& name : given.modules) {
    if (modules.insert(name).second) {
      tree.modules.push_back({name, nullptr});
    }
  }
  std::set<std::string> names;
  const auto check = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    FSDP_CHECK(tensor.defined(), ErrorCode::kInvalidArgument, "[fully_shard] ", kind, " \"", name,
               "\" of the tree is no tensor: leave it out");
    FSDP_CHECK(!name.empty() && names.insert(name).second, ErrorCode::kInvalidArgument,
               "[fully_shard] the tree has the name \"", name,
               "\" for more than one tensor, or a tensor without a name");
    FSDP_CHECK(modules.contains(parent_of(name)), ErrorCode::kInvalidArgument, "[fully_shard] ",
               kind, " \"", name, "\" is in no module of the tree: \"", parent_of(name),
               "\" is missing in TensorTree::modules");
  };
  for (const auto& [name, tensor] : given.parameters) {
    check("parameter", name, tensor);
    tree.parameters.emplace_back(name, tensor);
  }
  for (const NamedBuffer& buffer : given.buffers) {
    check("buffer", buffer.name, buffer.buffer);
    tree.buffers.push_back(buffer);
  }
  return tree;
}

ModuleTree read_tree(const torch::jit::Module& module) {
  ModuleTree tree;
  for (const auto& item : module.named_modules()) {
    tree.modules.push_back({item.name, nullptr});
  }
  for (const auto& item : module.named_parameters()) {
    tree.parameters.emplace_back(item.name, item.value);
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value.defined()) {
      tree.buffers.push_back({item.name, item.value});
    }
  }
  return tree;
}

}  // namespace fsdp::engine
