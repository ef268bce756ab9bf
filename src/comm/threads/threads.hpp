// SPDX-License-Identifier: Apache-2.0
/// The transport whose ranks are threads of one process. Nothing is staged: every rank reads its
/// peers' buffers directly. A world of one process is this transport with one rank.
#pragma once

#include <memory>
#include <string>

#include "comm/timeout.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::comm {

/// What the ranks of one group share. *Thread safety*: internally locked.
class ThreadGroup;

std::shared_ptr<ThreadGroup> make_thread_group(int size, detail::Milliseconds timeout);

/// The communicator of one rank; make one for each rank of the group.
std::shared_ptr<Communicator> make_threads_communicator(std::shared_ptr<ThreadGroup> group,
                                                        int rank);

}  // namespace fsdp::comm
