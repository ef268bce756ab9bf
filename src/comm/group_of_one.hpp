// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/host_transport.hpp"

namespace fsdp::comm::detail {

/// The group of one rank alone: every collective is an identity and nothing is sent. Failures,
/// recovery, time-outs and memory are those of `parent`, a rank's way to the others.
std::shared_ptr<HostTransport> make_group_of_one(Link parent);

}  // namespace fsdp::comm::detail
