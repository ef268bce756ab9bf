// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// Reduces and gathers a few known numbers: transports whose sums are other people's work may drop
/// an operation that they do not know, or average where they should sum, without a word.
/// @collective all ranks @blocks
/// @throws Error kUnsupported, on all ranks that can see it, naming `what` and both numbers
void check_sums(Transport& group, const std::string& what);

}  // namespace fsdp::comm::detail
