// SPDX-License-Identifier: Apache-2.0
/// A strategy in the name of a test, which may not have hyphens.
#pragma once

#include <algorithm>
#include <string>

#include "fsdp/engine/strategy.hpp"

namespace fsdp::test {

inline std::string name_of(Strategy strategy) {
  std::string name = to_string(strategy);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace fsdp::test
