// SPDX-License-Identifier: Apache-2.0
/// The kinds of collective without a LibTorch header, for the code that only names them.
/// include/fsdp/comm/communicator.hpp defines the same enumeration; an opaque declaration suffices.
#pragma once

#include <cstdint>

namespace fsdp::comm {
enum class Operation : std::int32_t;
const char* to_string(Operation operation);
}  // namespace fsdp::comm
