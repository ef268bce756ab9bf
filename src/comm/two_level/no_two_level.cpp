// SPDX-License-Identifier: Apache-2.0
/// In place of two_level_row.cpp in a build for a LibTorch without Gloo.
#include "comm/transport_row.hpp"
#include "comm/two_level/two_level.hpp"

namespace fsdp::comm::detail {

TransportRow two_level_row() {
  return {.info = {.traits = two_level_traits(),
                   .between = kTwoLevelBetween,
                   .not_built = kWithoutGloo},
          .auto_order = 2};
}

}  // namespace fsdp::comm::detail
