// SPDX-License-Identifier: Apache-2.0
/// The transport between processes of one host, at memory speed: nobody sends, everybody reads the
/// peers' memory. See NOTE [who copies what in shared memory] in shm_exchange.hpp.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "comm/timeout.hpp"
#include "fsdp/comm/communicator.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm {

struct ShmOptions {
  int rank = 0;
  int size = 1;
  detail::Milliseconds timeout{};
};

/// All ranks must run on one host, as one user, in one PID namespace. `store` is needed for the
/// meeting only.
/// @collective all ranks @blocks until all have joined
/// @throws Error on all ranks: kIo when there is too little shared memory, kPeerFailed when a rank
/// cannot open it, kTimeout
std::shared_ptr<Communicator> make_shm_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ShmOptions& options);

}  // namespace fsdp::comm
