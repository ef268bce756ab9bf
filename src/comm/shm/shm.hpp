// SPDX-License-Identifier: Apache-2.0
/// The transport between processes of one host, at memory speed: nobody sends, everybody reads the
/// peers' memory. See NOTE [who copies what in shared memory] in shm_exchange.hpp.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/host_transport.hpp"
#include "comm/join/set_up_exchange.hpp"

namespace fsdp::comm {

namespace detail {
inline Traits shm_traits() { return {.name = "shm", .shares_memory = true}; }
}  // namespace detail

/// All ranks must run on one host, as one user, in one PID namespace. The store is needed for the
/// meeting only.
/// @collective all ranks @blocks until all have joined
/// @throws Error on all ranks: kIo when there is too little shared memory or a rank cannot open it,
/// kTimeout, kPeerFailed
///
/// Where the ranks are a part of a larger job, waits ask `elsewhere` now and then for the text of a
/// failure there, empty for none; it ends them.
std::shared_ptr<detail::HostTransport> make_shm_transport(
    const detail::SetUp& set_up, std::function<std::string()> elsewhere = nullptr);

/// All ranks of `whole`, which share memory, once more: for a thread that works
/// while the one that uses `whole` computes. Its waits do not spin. @collective @blocks @throws as
/// split()
std::shared_ptr<detail::HostTransport> split_for_background(detail::HostTransport& whole,
                                                            const std::string& label);

}  // namespace fsdp::comm
