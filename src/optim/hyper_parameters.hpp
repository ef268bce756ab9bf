// SPDX-License-Identifier: Apache-2.0
/// Options of an optimizer as named numbers, and the other way round: one table a kind of options.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/optim/flat_optimizer.hpp"

namespace fsdp::optim {

template <class Options>
struct Field {
  const char* name;
  std::variant<double Options::*, bool Options::*> member;
};

template <class Options>
std::map<std::string, double> to_values(const Options& options,
                                        std::span<const Field<Options>> fields) {
  std::map<std::string, double> values;
  for (const Field<Options>& field : fields) {
    std::visit([&](auto member) { values[field.name] = static_cast<double>(options.*member); },
               field.member);
  }
  return values;
}

/// Names that are missing leave their field alone.
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

template <class Options>
std::vector<Options> options_of(const std::vector<Group<Options>>& groups) {
  std::vector<Options> options;
  options.reserve(groups.size());
  for (const Group<Options>& group : groups) {
    options.push_back(group.options);
  }
  return options;
}

}  // namespace fsdp::optim
