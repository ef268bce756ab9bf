// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/join/set_up_exchange.hpp"
#include "shm/group.hpp"

namespace fsdp::comm::detail {

/// Rank 0 makes the control block, the others open it; a failure of one is the error of all.
/// @collective all ranks @blocks until all have joined @throws as make_shm_transport()
std::shared_ptr<shm::Group> meet_in_shared_memory(const SetUp& set_up);

}  // namespace fsdp::comm::detail
