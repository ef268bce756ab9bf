// SPDX-License-Identifier: Apache-2.0
/// In place of c10d_row.cpp in a build for a LibTorch without Gloo. make_c10d_link() is there: it
/// takes any backend.
#include "comm/c10d/c10d_traits.hpp"
#include "comm/gloo/gloo.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

TransportRow c10d_row() {
  return {.info = {.traits = c10d_traits(), .between = kC10dBetween, .not_built = kWithoutGloo}};
}

}  // namespace fsdp::comm::detail
