// SPDX-License-Identifier: Apache-2.0
/// What Options and Options::rules come to for each unit.
#pragma once

#include <map>
#include <set>
#include <string>

#include "engine/partition/module_tree.hpp"
#include "fsdp/engine/options.hpp"

namespace fsdp::engine {

/// What holds for one unit, with all its parts.
struct Terms {
  Strategy strategy = Strategy::kFullShard;
  bool is_kept = false;
  bool is_optional = false;
  MixedPrecision precision;
};

/// The terms of each unit, by the path of its module. `claimed`: modules that are units; `numels`:
/// the elements of each that has some.
/// @throws Error kNotFound for a path that a rule lists and that is no unit, and for a rule that
/// fits no unit
std::map<std::string, Terms> terms_of_units(const ModuleTree& tree,
                                            const std::set<std::string>& claimed,
                                            const std::map<std::string, std::int64_t>& numels,
                                            const Options& options);

/// Whether any operator has its operands cast to the type of the weight that it takes.
bool casts_operands(const Options& options);

}  // namespace fsdp::engine
