// SPDX-License-Identifier: Apache-2.0
/// Optimizers whose rule treats each element by itself, which shards do not change: a rule says
/// what its hyper-parameters are, checks them, and updates a stretch of elements. Groups, counters,
/// state, memory, checkpoints and skipped steps come from here. AdamW, SGD and Lion are such rules;
/// write another for one of your own.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/optim/flat_optimizer.hpp"

namespace fsdp::optim {

/// A hyper-parameter by name, as checkpoints keep it.
template <class Options>
struct Field {
  const char* name;
  std::variant<double Options::*, bool Options::*> member;
};

/// Hyper-parameters one after the other; truths are 0 or 1.
template <class Options, class Visit>
void visit_fields(const Options& options, std::span<const Field<Options>> fields, Visit&& visit) {
  for (const Field<Options>& field : fields) {
    std::visit([&](auto member) { visit(field.name, static_cast<double>(options.*member)); },
               field.member);
  }
}

/// The same as named numbers.
template <class Options>
std::map<std::string, double> to_values(const Options& options,
                                        std::span<const Field<Options>> fields) {
  std::map<std::string, double> values;
  visit_fields(options, fields, [&](const char* name, double value) { values[name] = value; });
  return values;
}

/// The way back. Names that are missing leave their field alone.
template <class Options>
void from_values(Options& options, std::span<const Field<Options>> fields,
                 const std::map<std::string, double>& values) {
  for (const Field<Options>& field : fields) {
    const auto found = values.find(field.name);
    if (found != values.end()) {
      std::visit(
          [&](auto member) {
            using Member = std::remove_reference_t<decltype(options.*member)>;
            options.*member = static_cast<Member>(found->second);
          },
          field.member);
    }
  }
}

/// What a rule has, all of it static: the struct of its hyper-parameters `Options`, its name in
/// checkpoints, the fields of Options, the names of what a parameter has besides its shard, a check
/// that throws kInvalidArgument, and the update of one stretch, in place.
template <class Rule>
concept ElementRule =
    requires(const typename Rule::Options& options, const FlatOptimizer::Run& run) {
      { Rule::kName } -> std::convertible_to<const char*>;
      { Rule::fields() } -> std::same_as<std::span<const Field<typename Rule::Options>>>;
      { Rule::states(options) } -> std::same_as<std::vector<std::string>>;
      Rule::check(options);
      Rule::update(run, options);
    };

/// The optimizer that a rule makes.
///
/// *Invariants*, *Thread safety*: those of FlatOptimizer. *Example*: adamw.hpp and adamw.cpp.
template <ElementRule Rule>
class ElementWise : public FlatOptimizer {
 public:
  using Options = typename Rule::Options;

  /// All parameters in one group. @memory for each of the rule's states one tensor of the shards'
  /// size and dtype @throws Error kInvalidArgument as the rule's check
  explicit ElementWise(Sharded sharded, Options options = {})
      : ElementWise(std::move(sharded), {{.parameters = {"*"}, .options = options}}) {}
  /// @throws Error also kNotFound for a pattern that fits no parameter
  ElementWise(Sharded sharded, std::vector<Group<Options>> groups)
      : FlatOptimizer(Rule::kName, std::move(sharded), specs_of(groups)) {
    for (const Group<Options>& group : groups) {
      options_.push_back(group.options);
    }
  }

  /// To change between steps, for example the learning rate.
  Options& options(int group = 0) { return options_.at(static_cast<std::size_t>(group)); }

  std::map<std::string, double> values(int group) const override {
    return to_values(options_.at(static_cast<std::size_t>(group)), Rule::fields());
  }
  void visit_values(
      int group, const std::function<void(const char* name, double value)>& visit) const override {
    visit_fields(options_.at(static_cast<std::size_t>(group)), Rule::fields(), visit);
  }
  void set_values(int group, const std::map<std::string, double>& values) override {
    from_values(options(group), Rule::fields(), values);
  }

 private:
  static std::vector<GroupSpec> specs_of(const std::vector<Group<Options>>& groups) {
    std::vector<GroupSpec> specs;
    for (const Group<Options>& group : groups) {
      Rule::check(group.options);
      specs.push_back({.parameters = group.parameters, .states = Rule::states(group.options)});
    }
    return specs;
  }
  void update(const Run& run) override { Rule::update(run, options(run.group)); }

  std::vector<Options> options_;
};

}  // namespace fsdp::optim
