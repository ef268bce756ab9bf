// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fsdp::comm::detail {

/// What a rank says of a peer that is needed and has left its group in good order: its
/// program ended before that of the others, whatever its exit code.
inline std::string describe_early_leave(const std::string& peer) {
  return "cannot complete: " + peer +
         " has left the job early and told no error: its program ended, or destroyed its World. "
         "Every rank must make the same calls, as many steps as the others";
}

}  // namespace fsdp::comm::detail
