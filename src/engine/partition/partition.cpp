// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/partition.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/near_names.hpp"
#include "engine/partition/module_tree.hpp"
#include "engine/partition/unit_rules.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/unit/precision.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/engine/deferred_init.hpp"

namespace fsdp::engine {

namespace {

/// The innermost module on the way to `path` that is in `claimed`, or "" (the root).
std::string owner_of(const std::string& path, const std::set<std::string>& claimed) {
  for (std::string module = path; !module.empty(); module = parent_of(module)) {
    if (claimed.contains(module)) {
      return module;
    }
  }
  return {};
}

/// `, nearest are "h.0", "h.1"`; empty in a module without others inside.
std::string near_modules(const ModuleTree& tree, const std::string& wanted) {
  std::vector<std::string> names;
  for (const ModuleTree::Node& node : tree.modules) {
    if (!node.name.empty()) {
      names.push_back(node.name);
    }
  }
  const std::string near = base::near_names_text(wanted, names);
  return near.empty() ? "" : ", nearest are " + near;
}

/// Asks the policy about every module, innermost first.
std::set<std::string> claim(const ModuleTree& tree, const Units& policy) {
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
               name, "\"", near_modules(tree, name),
               "; modules have the names that named_modules() shows, without a leading dot");
  }
  check_units_fit(tree, policy);
  return claimed;
}

/// Modules inside of which MixedPrecision leaves everything as it is.
std::set<std::string> full_precision_modules(const ModuleTree& tree, const Units& policy) {
  std::set<std::string> claimed;
  for (const ModuleTree::Node& node : tree.modules) {
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
               "\", but no module is called so", near_modules(tree, name));
  }
  return claimed;
}

bool is_in_any(const std::string& path, const std::set<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const auto& of) { return is_inside(path, of); });
}

/// What mixed precision does to the operators that take a unit's weights.
void set_casts(Unit& unit, const Options& options) {
  if (c10::isFloatingType(unit.param_dtype)) {
    unit.casts_operands = casts_operands(options);
    unit.result_dtype = options.precision.output;
  }
}

/// Elements of each unit, by the path of its module; what units inside of it have is not counted.
std::map<std::string, std::int64_t> numels_of(const ModuleTree& tree,
                                              const std::set<std::string>& claimed) {
  std::map<std::string, std::int64_t> numels;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tree.parameters) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      numels[owner_of(parent_of(name), claimed)] += tensor.numel();
    }
  }
  return numels;
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

std::map<std::string, OfOwner> by_owner(const ModuleTree& tree,
                                        const std::set<std::string>& claimed,
                                        const std::set<std::string>& full_precision,
                                        const std::map<std::string, Terms>& terms,
                                        std::int64_t replicate_below) {
  std::map<std::string, OfOwner> owners;
  std::unordered_map<const c10::TensorImpl*, Parameter*> first_names;
  int order = 0;
  for (const auto& [name, tensor] : tree.parameters) {
    if (auto known = first_names.find(tensor.unsafeGetTensorImpl()); known != first_names.end()) {
      known->second->aliases.push_back(name);
      continue;
    }
    const std::string owner = owner_of(parent_of(name), claimed);
    const Terms& of_unit = terms.at(owner);
    const bool is_small =
        of_unit.strategy != Strategy::kReplicate && tensor.numel() < replicate_below;
    OfOwner& of = owners[is_small ? kReplicatedName : owner];
    const Kind kind{.types = types_of(tensor, is_in_any(name, full_precision), of_unit.precision),
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
    parameter.has_no_member = tree.without_member.contains(name);
    members.push_back(std::move(parameter));
    first_names[tensor.unsafeGetTensorImpl()] = &members.back();
  }
  return owners;
}

/// Where the units are gathered.
c10::Device device_of(const ModuleTree& tree, const Options& options) {
  const auto& [name, first] = tree.parameters.front();
  if (!options.device.has_value()) {
    return first.device();
  }
  c10::Device device = *options.device;
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  FSDP_CHECK(first.is_cpu() || first.device() == device, ErrorCode::kInvalidArgument,
             "[fully_shard] Options::device is ", device, " and parameter \"", name, "\" is on ",
             first.device(), ": a module comes from the CPU, or is there already");
  return device;
}

/// Groups the parameters by owner and kind, in the module's order.
Partition group(ModuleTree tree, const Options& options) {
  std::vector<at::Tensor> ignored = drop_ignored(tree, options.ignore);
  check_tree(tree);
  check_precision(options);
  const std::set<std::string> full = full_precision_modules(tree, options.precision.full_precision);
  const std::set<std::string> claimed = claim(tree, options.units);
  std::map<std::string, Terms> terms =
      terms_of_units(tree, claimed, numels_of(tree, claimed), options);
  std::map<std::string, OfOwner> of_owners =
      by_owner(tree, claimed, full, terms, options.replicate_below);
  terms[kReplicatedName] = {.strategy = Strategy::kReplicate, .precision = options.precision};
  std::vector<std::string> owners = {""};
  for (const ModuleTree::Node& node : tree.modules) {
    if (claimed.contains(node.name)) {
      owners.push_back(node.name);
    }
  }
  owners.emplace_back(kReplicatedName);
  const c10::Device device = device_of(tree, options);
  Partition result;
  result.buffers = tree.buffers;
  result.ignored = std::move(ignored);
  for (const auto& [name, buffer] : tree.buffers) {
    materialize(buffer);  // whole on every rank
    if (options.device.has_value() && buffer.device() != device) {
      buffer.set_data(buffer.detach().to(device));
    }
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
      unit.placement.strategy = terms.at(owner).strategy;
      unit.is_kept = terms.at(owner).is_kept;
      unit.is_optional = terms.at(owner).is_optional;
      unit.dtype = kind.types.shard;
      unit.param_dtype = kind.types.param;
      unit.reduce_dtype = kind.types.reduce;
      set_casts(unit, options);
      unit.parameters = std::move(of.parameters[kind]);
      unit.device = device;
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
  result.bundles = Bundles(result.units);
  return result;
}

}  // namespace

Partition partition(torch::nn::Module& module, const Options& options) {
  Partition result = group(read_tree(module), options);
  result.watch = ModuleWatch(module, options.ignore);
  return result;
}

Partition partition(const torch::jit::Module& module, const Options& options) {
  Partition result = group(read_tree(module), options);
  result.script_watch = ScriptWatch(module, options.ignore);
  return result;
}

Partition partition(const TensorTree& tree, const Options& options) {
  return group(read_tree(tree), options);
}

}  // namespace fsdp::engine
