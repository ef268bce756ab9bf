// SPDX-License-Identifier: Apache-2.0
/// The transport whose ranks are threads of one process. Nothing is staged: every rank reads its
/// peers' buffers directly. A world of one process is this transport with one rank.
#pragma once

#include <memory>
#include <string>

#include "comm/host_transport.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm {

namespace detail {
inline Traits threads_traits() { return {.name = "threads"}; }
}  // namespace detail

/// What the ranks of one group share. *Thread safety*: internally locked.
class ThreadGroup;

std::shared_ptr<ThreadGroup> make_thread_group(int size, detail::Milliseconds timeout);

/// One rank's way to the others; make one for each rank of the group.
std::shared_ptr<detail::HostTransport> make_threads_transport(std::shared_ptr<ThreadGroup> group,
                                                              int rank);

}  // namespace fsdp::comm
