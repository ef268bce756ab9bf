// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "fsdp/comm/link.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// A rank alone, on a device: every collective is operators on the caller's current stream, and
/// nothing is sent. `host` is the group of one of its control and of its tensors on the CPU.
std::shared_ptr<Transport> make_device_group_of_one(Link host, c10::Device device);

}  // namespace fsdp::comm::detail
