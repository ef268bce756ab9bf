// SPDX-License-Identifier: Apache-2.0
/// How the ranks of a failed group meet again, with nothing but the job's store to go by.
#pragma once

#include <cstdint>

#include "comm/first_failure.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

/// Returns once every rank of the group has called it for this generation.
/// @throws Error kTimeout naming the ranks that did not come (this rank then no longer counts as
/// there), kPeerFailed when the store cannot be reached
void meet_again(FailureBoard& board, int rank, int size, std::uint64_t generation,
                Milliseconds timeout);

}  // namespace fsdp::comm::detail
