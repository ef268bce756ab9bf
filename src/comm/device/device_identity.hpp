// SPDX-License-Identifier: Apache-2.0
/// Which device it really is: ranks may call one device by different numbers, and different ones by
/// the same.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace fsdp::comm::detail {

/// Equal for two ranks exactly if they are on one device. Of CUDA the UUID, of a part of a device
/// that of the part; else the host, the process where the device is simulated in it, and the
/// number.
std::string device_identity(c10::Device device);

/// "ranks 0 and 1 are both on GPU-...", and what to do.
std::string describe_shared_device(int rank, int other, const std::string& identity);

}  // namespace fsdp::comm::detail
