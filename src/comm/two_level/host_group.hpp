// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/host_transport.hpp"

namespace fsdp::comm::detail {

/// A group of ranks of one host in a job of several: collectives are those of `host`, a group over
/// shared memory; failures, recovery and time-outs are those of `job`, to which a failure in the
/// group is told.
std::shared_ptr<HostTransport> make_host_group(std::shared_ptr<Job> job,
                                               std::shared_ptr<HostTransport> host);

}  // namespace fsdp::comm::detail
