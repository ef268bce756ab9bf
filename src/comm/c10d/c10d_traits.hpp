// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

inline Traits c10d_traits() {
  return {.name = "c10d", .sums = Sums::kBackend, .can_split = false, .can_recover = false};
}
inline constexpr const char* kC10dBetween = "processes of any hosts, by collectives of c10d";

}  // namespace fsdp::comm::detail
