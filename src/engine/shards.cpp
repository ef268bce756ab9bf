// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/shards.hpp"

namespace fsdp {

GroupRule decay_rule() {
  return {.groups = 2, .group_of = [](const NamedShard& parameter) {
            const std::string own_name = parameter.name.substr(parameter.name.rfind('.') + 1);
            return parameter.sizes.size() >= 2 && own_name != "bias" ? 0 : 1;
          }};
}

}  // namespace fsdp
