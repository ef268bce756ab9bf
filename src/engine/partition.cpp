// SPDX-License-Identifier: Apache-2.0
#include "engine/partition.hpp"

#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "engine/deferred.hpp"
#include "engine/layer_members.hpp"
#include "engine/name_pattern.hpp"
#include "engine/precision.hpp"
#include "engine/touch.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/engine/deferred_init.hpp"

namespace fsdp::engine {

namespace {

/// What both kinds of module come down to.
struct Tree {
  struct Node {
    std::string name;
    const torch::nn::Module* module;  ///< null for TorchScript
  };
  std::vector<Node> modules;  ///< parents before children
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<NamedBuffer> buffers;
  /// Modules whose parameters no C++ member holds: all of TorchScript, and torch's own containers.
  std::set<std::string> registries;
};

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

bool is_inside(const std::string& path, const std::string& module) {
  return module.empty() || path == module ||
         (path.size() > module.size() && path.compare(0, module.size(), module) == 0 &&
          path[module.size()] == '.');
}

/// The innermost module on the way to `path` that is in `claimed`, or "" (the root).
std::string owner_of(const std::string& path, const std::set<std::string>& claimed) {
  for (std::string module = path; !module.empty(); module = parent_of(module)) {
    if (claimed.contains(module)) {
      return module;
    }
  }
  return {};
}

/// Asks the policy about every module, innermost first.
std::set<std::string> claim(const Tree& tree, const Units& policy) {
  std::set<std::string> claimed;
  for (auto node = tree.modules.rbegin(); node != tree.modules.rend(); ++node) {
    if (node->name.empty()) {
      continue;  // the outermost module is the root unit in any case
    }
    std::int64_t numel = 0;
    for (const auto& [name, tensor] : tree.parameters) {
      const std::string owner = owner_of(parent_of(name), claimed);
      const bool is_claimed_inside = !owner.empty() && is_inside(owner, node->name);
      if (is_inside(name, node->name) && !is_claimed_inside) {
        numel += tensor.numel();
      }
    }
    if (policy.claims({.name = node->name, .module = node->module, .numel = numel})) {
      claimed.insert(node->name);
    }
  }
  for (const std::string& name : policy.required_names) {
    FSDP_CHECK(claimed.contains(name), ErrorCode::kNotFound, "[fully_shard] no module is called \"",
               name,
               "\"; modules have the names that named_modules() shows, without a leading dot");
  }
  return claimed;
}

/// What a parameter must be by itself.
void check_parameters(const Tree& tree) {
  FSDP_CHECK(!tree.parameters.empty(), ErrorCode::kInvalidArgument,
             "[fully_shard] the module has no parameters");
  const auto& [first_name, first] = tree.parameters.front();
  for (const auto& [name, tensor] : tree.parameters) {
    FSDP_CHECK(!tensor.key_set().has(kTouchKey) || was_deferred(tensor),
               ErrorCode::kInvalidArgument, "[fully_shard] parameter \"", name,
               "\" is sharded already, with this module or with another one that shares it: keep "
               "that Sharded. If it is gone, its weights are gone with it; copies made inside "
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

/// How many tensors of this module use each storage: what is more, somebody else holds.
void check_aliases(const Tree& tree) {
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
    const std::size_t held =
        c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(storage));
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
      if (entry == nullptr || !member.tensor->defined()) {
        continue;
      }
      if (!entry->is_same(*member.tensor)) {
        std::string source;
        for (const auto& parameter : root.named_parameters()) {
          if (parameter.value().is_same(*member.tensor)) {
            source = parameter.key();
          }
        }
        const std::string name = item.key().empty() ? member.name : item.key() + "." + member.name;
        fail(ErrorCode::kInvalidArgument, "[fully_shard] \"", name,
             "\" as forward uses it is not the registered parameter",
             source.empty() ? "" : ", it is \"" + source + "\"",
             ": an assignment to the member does not tie weights, the registered one would never "
             "train. Use fsdp::tie_weights(from, \"weight\", to, \"weight\")");
      }
    }
  }
}

/// Asks `policy` about every unit that is a module, and notes the answers in `claimed`.
void ask_units(Partition& partition, const Tree& tree, const Units& policy, const char* option,
               bool Unit::* claimed) {
  std::set<std::string> asked;
  for (Unit& unit : partition.units) {
    if (unit.bundle == partition.replicated) {
      continue;
    }
    const auto node = std::ranges::find(tree.modules, unit.module, &Tree::Node::name);
    std::int64_t numel = 0;
    for (const Parameter& parameter : unit.parameters) {
      numel += parameter.numel;
    }
    asked.insert(unit.module);
    unit.*claimed = policy.claims({.name = unit.module,
                                   .module = node == tree.modules.end() ? nullptr : node->module,
                                   .numel = numel});
  }
  for (const std::string& name : policy.required_names) {
    FSDP_CHECK(asked.contains(name), ErrorCode::kNotFound, "[fully_shard] Options::", option,
               " lists \"", name,
               "\", which is not the module of a unit: list it in Options::units too");
  }
}

/// Takes out what Options::ignore names.
void drop_ignored(Tree& tree, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const auto is_ignored = [&](const auto& parameter) {
      return matches(pattern, parameter.first);
    };
    FSDP_CHECK(std::ranges::any_of(tree.parameters, is_ignored), ErrorCode::kNotFound,
               "[fully_shard] Options::ignore has \"", pattern,
               "\", which is no parameter's name; names are those of named_parameters(), and * "
               "stands for any text");
  }
  std::erase_if(tree.parameters, [&](const auto& parameter) {
    return std::ranges::any_of(
        patterns, [&](const std::string& pattern) { return matches(pattern, parameter.first); });
  });
}

/// Modules inside of which MixedPrecision leaves everything as it is.
std::set<std::string> full_precision_modules(const Tree& tree, const Units& policy) {
  std::set<std::string> claimed;
  for (const Tree::Node& node : tree.modules) {
    std::int64_t numel = 0;
    for (const auto& [name, tensor] : tree.parameters) {
      numel += is_inside(name, node.name) ? tensor.numel() : 0;
    }
    if (policy.claims({.name = node.name, .module = node.module, .numel = numel})) {
      claimed.insert(node.name);
    }
  }
  for (const std::string& name : policy.required_names) {
    FSDP_CHECK(claimed.contains(name), ErrorCode::kNotFound,
               "[fully_shard] precision.full_precision lists \"", name,
               "\", but no module is called so");
  }
  return claimed;
}

bool is_in_any(const std::string& path, const std::set<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const auto& of) { return is_inside(path, of); });
}

/// What mixed precision does to the operators that take a unit's weights.
void set_casts(Unit& unit, const MixedPrecision& precision) {
  if (c10::isFloatingType(unit.param_dtype)) {
    unit.casts_operands = precision.param.has_value();
    unit.result_dtype = precision.output;
  }
}

/// What the parameters of one flat buffer have in common, besides the module.
struct Kind {
  Types types;
  bool is_frozen;
  auto operator<=>(const Kind&) const = default;
};

/// All parameters of an owner, by kind, both in the module's order.
struct OfOwner {
  std::vector<Kind> kinds;
  std::map<Kind, std::vector<Parameter>> parameters;
};

/// "h.0", or with more than one kind "h.0 Float frozen".
std::string unit_name(const std::string& owner, const OfOwner& of, const Kind& kind) {
  std::string name = owner.empty() ? kRootName : owner;
  const auto differs = [&](auto member) {
    return std::ranges::any_of(of.kinds,
                               [&](const Kind& other) { return other.*member != kind.*member; });
  };
  if (differs(&Kind::types)) {
    name += " " + describe(kind.types);
  }
  if (kind.is_frozen && differs(&Kind::is_frozen)) {
    name += " frozen";
  }
  return name;
}

std::map<std::string, OfOwner> by_owner(const Tree& tree, const std::set<std::string>& claimed,
                                        const std::set<std::string>& full_precision,
                                        const Options& options) {
  std::map<std::string, OfOwner> owners;
  std::unordered_map<const c10::TensorImpl*, Parameter*> first_names;
  int order = 0;
  for (const auto& [name, tensor] : tree.parameters) {
    if (auto known = first_names.find(tensor.unsafeGetTensorImpl()); known != first_names.end()) {
      known->second->aliases.push_back(name);
      continue;
    }
    const bool is_small =
        options.strategy != Strategy::kReplicate && tensor.numel() < options.replicate_below;
    OfOwner& of = owners[is_small ? kReplicatedName : owner_of(parent_of(name), claimed)];
    const Kind kind{.types = types_of(tensor, is_in_any(name, full_precision), options.precision),
                    .is_frozen = !tensor.requires_grad()};
    if (std::ranges::find(of.kinds, kind) == of.kinds.end()) {
      of.kinds.push_back(kind);
    }
    auto& members = of.parameters[kind];
    members.reserve(tree.parameters.size());  // pointers to members must stay
    Parameter parameter;
    parameter.name = name;
    parameter.tensor = tensor;
    parameter.order = order++;
    parameter.sizes = tensor.sizes().vec();
    parameter.numel = tensor.numel();
    parameter.has_member = !tree.registries.contains(parent_of(name));
    members.push_back(std::move(parameter));
    first_names[tensor.unsafeGetTensorImpl()] = &members.back();
  }
  return owners;
}

/// Groups the parameters by owner and kind, in the module's order.
Partition group(Tree tree, const Options& options) {
  drop_ignored(tree, options.ignore);
  check_parameters(tree);
  check_aliases(tree);
  check_precision(options.precision);
  const std::set<std::string> full = full_precision_modules(tree, options.precision.full_precision);
  const std::set<std::string> claimed = claim(tree, options.units);
  std::map<std::string, OfOwner> of_owners = by_owner(tree, claimed, full, options);
  std::vector<std::string> owners = {""};
  for (const Tree::Node& node : tree.modules) {
    if (claimed.contains(node.name)) {
      owners.push_back(node.name);
    }
  }
  owners.emplace_back(kReplicatedName);
  Partition result;
  result.buffers = tree.buffers;
  for (const auto& [name, buffer] : tree.buffers) {
    materialize(buffer);  // whole on every rank
    result.low_buffers.push_back(options.precision.buffers.has_value() &&
                                 buffer.is_floating_point() && !is_in_any(name, full));
  }
  int bundle = 0;
  for (const std::string& owner : owners) {
    OfOwner& of = of_owners[owner];
    for (const Kind& kind : of.kinds) {
      Unit unit;
      unit.name = unit_name(owner, of, kind);
      unit.module = owner;
      unit.bundle = bundle;
      unit.placement.strategy = owner == kReplicatedName ? Strategy::kReplicate : options.strategy;
      unit.dtype = kind.types.shard;
      unit.param_dtype = kind.types.param;
      unit.reduce_dtype = kind.types.reduce;
      set_casts(unit, options.precision);
      unit.parameters = std::move(of.parameters[kind]);
      unit.device = unit.parameters.front().tensor.device();
      result.units.push_back(std::move(unit));
    }
    if (of.kinds.empty()) {
      continue;
    }
    if (owner.empty()) {
      result.root = bundle;
    } else if (owner == kReplicatedName) {
      result.replicated = bundle;
    }
    ++bundle;
  }
  ask_units(result, tree, options.optional, "optional", &Unit::is_optional);
  ask_units(result, tree, options.keep_gathered, "keep_gathered", &Unit::is_kept);
  return result;
}

}  // namespace

Partition partition(torch::nn::Module& module, const Options& options) {
  check_members(module);
  Tree tree;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const torch::nn::Module* of = item.value().get();
    tree.modules.push_back({item.key(), of});
    if (dynamic_cast<const torch::nn::ParameterDictImpl*>(of) != nullptr ||
        dynamic_cast<const torch::nn::ParameterListImpl*>(of) != nullptr) {
      tree.registries.insert(item.key());
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
  return group(std::move(tree), options);
}

Partition partition(const torch::jit::Module& module, const Options& options) {
  Tree tree;
  tree.registries.insert("");
  for (const auto& item : module.named_modules()) {
    tree.modules.push_back({item.name, nullptr});
    tree.registries.insert(item.name);
  }
  for (const auto& item : module.named_parameters()) {
    tree.parameters.emplace_back(item.name, item.value);
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value.defined()) {
      tree.buffers.push_back({item.name, item.value});
    }
  }
  return group(std::move(tree), options);
}

}  // namespace fsdp::engine
