// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/unit_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/near_names.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

Terms terms_of(const Candidate& unit, const Options& options) {
  UnitRule all;
  const auto take = [](auto& field, const auto& said) {
    if (!field.has_value()) {
      field = said;
    }
  };
  for (const UnitRule& rule : options.rules) {
    if (rule.units.claims(unit)) {
      take(all.strategy, rule.strategy);
      take(all.keep_gathered, rule.keep_gathered);
      take(all.optional, rule.optional);
      take(all.param, rule.param);
    }
  }
  const Strategy strategy = all.strategy.value_or(options.strategy);
  Terms terms{.strategy = strategy,
              .is_kept = all.keep_gathered.value_or(strategy == Strategy::kShardGrad),
              .is_optional = all.optional.value_or(false),
              .precision = options.precision};
  take(all.param, options.precision.param);
  terms.precision.param = all.param;
  return terms;
}

/// The root counts also where it has no parameters: a rule for it is no slip then.
void check_fits_a_unit(const ModuleTree& tree, const std::set<std::string>& claimed,
                       const std::map<std::string, std::int64_t>& numels, const UnitRule& rule,
                       std::size_t number) {
  std::vector<std::string> names;
  for (const ModuleTree::Node& node : tree.modules) {
    if (!node.name.empty() && !claimed.contains(node.name)) {
      continue;
    }
    const auto numel = numels.find(node.name);
    if (rule.units.claims({.name = node.name,
                           .module = node.module,
                           .numel = numel == numels.end() ? 0 : numel->second})) {
      return;
    }
    if (!node.name.empty()) {
      names.push_back(node.name);
    }
  }
  const std::size_t count = names.size();
  const std::string near = base::near_names_text(rule.units.description(), names, 5);
  fail(ErrorCode::kNotFound, "[fully_shard] Options::rules[", number, "] is for ",
       rule.units.description(), ", which fits none of ", count, " units",
       near.empty() ? "" : " beside the root, such as " + near,
       ": a rule is for what Options::units makes a unit");
}

}  // namespace

std::map<std::string, Terms> terms_of_units(const ModuleTree& tree,
                                            const std::set<std::string>& claimed,
                                            const std::map<std::string, std::int64_t>& numels,
                                            const Options& options) {
  for (std::size_t i = 0; i < options.rules.size(); ++i) {
    for (const std::string& name : options.rules[i].units.required_names) {
      if (!numels.contains(name)) {
        std::vector<std::string> units;
        for (const auto& [unit, numel] : numels) {
          if (!unit.empty()) {
            units.push_back(unit);
          }
        }
        const std::string near = base::near_names_text(name, units);
        fail(ErrorCode::kNotFound, "[fully_shard] Options::rules[", i, "] lists \"", name,
             "\", which is not the module of a unit", near.empty() ? "" : ", nearest are " + near,
             ": list it in Options::units too");
      }
    }
  }
  for (std::size_t i = 0; i < options.rules.size(); ++i) {
    check_fits_a_unit(tree, claimed, numels, options.rules[i], i);
  }
  std::map<std::string, Terms> terms;
  for (const auto& [name, numel] : numels) {
    const auto node = std::ranges::find(tree.modules, name, &ModuleTree::Node::name);
    terms[name] = terms_of({.name = name,
                            .module = node == tree.modules.end() ? nullptr : node->module,
                            .numel = numel},
                           options);
  }
  return terms;
}

bool casts_operands(const Options& options) {
  return options.precision.param.has_value() ||
         std::ranges::any_of(options.rules,
                             [](const UnitRule& rule) { return rule.param.has_value(); });
}

}  // namespace fsdp::engine
