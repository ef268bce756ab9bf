// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/unit_rules.hpp"

#include <algorithm>
#include <vector>

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

}  // namespace

std::map<std::string, Terms> terms_of_units(const ModuleTree& tree,
                                            const std::map<std::string, std::int64_t>& numels,
                                            const Options& options) {
  for (std::size_t i = 0; i < options.rules.size(); ++i) {
    for (const std::string& name : options.rules[i].units.required_names) {
      FSDP_CHECK(numels.contains(name), ErrorCode::kNotFound, "[fully_shard] Options::rules[", i,
                 "] lists \"", name,
                 "\", which is not the module of a unit: list it in Options::units too");
    }
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
