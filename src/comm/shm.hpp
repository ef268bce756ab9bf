// SPDX-License-Identifier: Apache-2.0
/// The transport between processes of one host, at memory speed: nobody sends, everybody reads the
/// peers' memory. See NOTE [who copies what in shared memory] in shm_exchange.hpp.
#pragma once

#include <memory>

#include "comm/set_up_exchange.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::comm {

/// All ranks must run on one host, as one user, in one PID namespace. The store is needed for the
/// meeting only.
/// @collective all ranks @blocks until all have joined
/// @throws Error on all ranks: kIo when there is too little shared memory or a rank cannot open it,
/// kTimeout, kPeerFailed
std::shared_ptr<Communicator> make_shm_communicator(const detail::SetUp& set_up);

}  // namespace fsdp::comm
