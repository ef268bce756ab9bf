// SPDX-License-Identifier: Apache-2.0
/// In place of gloo_row.cpp in a build for a LibTorch without Gloo.
#include "comm/gloo/gloo.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

TransportRow gloo_row() {
  return {.info = {.traits = gloo_traits(), .between = kGlooBetween, .not_built = kWithoutGloo},
          .auto_order = 3};
}

}  // namespace fsdp::comm::detail
