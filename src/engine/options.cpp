// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/options.hpp"

#include <sstream>

namespace fsdp {

std::string to_string(const GradientDivisor& divisor) {
  if (divisor == GradientDivisor::kMean) {
    return "the number of ranks";
  }
  std::ostringstream text;
  text << divisor.among(1);
  return text.str();
}

std::string to_string(const UnitRule& rule) {
  std::string text = rule.units.description();
  const char* separator = ": ";
  const auto add = [&](const std::string& what) {
    text += separator + what;
    separator = ", ";
  };
  if (rule.strategy.has_value()) {
    add(std::string("strategy ") + to_string(*rule.strategy));
  }
  if (rule.keep_gathered.has_value()) {
    add(*rule.keep_gathered ? "stay gathered" : "do not stay gathered");
  }
  if (rule.optional.has_value()) {
    add(*rule.optional ? "optional" : "not optional");
  }
  if (rule.param.has_value()) {
    add(std::string("gathered as ") + c10::toString(*rule.param));
  }
  return text;
}

}  // namespace fsdp
