// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/units.hpp"

#include <c10/util/Type.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp {

std::string engine::detail::describe_type(const std::type_info& type) {
  return "units of type " + c10::demangle(type.name());
}

Units root_unit() {
  return Units([](const Candidate& candidate) { return candidate.name.empty(); }, "the root unit");
}

Units units_matching(const std::string& pattern) {
  try {
    return Units(
        [expression = std::regex(pattern)](const Candidate& candidate) {
          return std::regex_match(candidate.name, expression);
        },
        "units matching \"" + pattern + "\"");
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kInvalidArgument, "[units_matching] \"", pattern,
         "\" is not a regular expression: ", error.what());
  }
}

Units units_listed(std::vector<std::string> names) {
  if (names.empty()) {
    return {};
  }
  std::string description = names.size() == 1 ? "unit" : "units";
  for (const std::string& name : names) {
    description += (name == names.front() ? " \"" : ", \"") + name + "\"";
  }
  Units units(
      [names](const Candidate& candidate) {
        return std::find(names.begin(), names.end(), candidate.name) != names.end();
      },
      std::move(description));
  units.required_names = std::move(names);
  return units;
}

Units units_larger_than(std::int64_t min_numel) {
  return Units([min_numel](const Candidate& candidate) { return candidate.numel >= min_numel; },
               "units of at least " + std::to_string(min_numel) + " elements");
}

}  // namespace fsdp
