// SPDX-License-Identifier: Apache-2.0
/// Which ranks run on one host, so that they can share memory.
#pragma once

#include <string>
#include <vector>

namespace fsdp::comm::detail {

/// FSDP_HOST_ID, else the boot's id, the host's name and the PID namespace: equal on two processes
/// only when one can open the other's memory through /proc (as the same user).
std::string host_identity();

/// The first rank whose text differs from rank 0's, -1 when there is none.
int first_elsewhere(const std::vector<std::string>& hosts);

}  // namespace fsdp::comm::detail
