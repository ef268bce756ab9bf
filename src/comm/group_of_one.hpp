// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fsdp/comm/communicator.hpp"

namespace fsdp::comm::detail {

/// The group of one rank alone: every collective is an identity and nothing is sent. Failures,
/// recovery, time-outs and memory are those of `parent`, a rank's way to the others.
std::shared_ptr<Communicator> make_group_of_one(std::shared_ptr<Communicator> parent);

}  // namespace fsdp::comm::detail
