// SPDX-License-Identifier: Apache-2.0
/// How ranks that are not connected meet again, or learn who is missing, with nothing but the job's
/// store to go by.
#pragma once

#include <cstdint>
#include <string>

#include "comm/first_failure.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

/// Returns once every rank of the group has called it for this generation.
/// @throws Error kTimeout naming the ranks that did not come (this rank then no longer counts as
/// there), kPeerFailed when the store cannot be reached
void meet_again(FailureBoard& board, int rank, int size, std::uint64_t generation,
                Milliseconds timeout);

/// For ranks that could not connect: "; missing: 1", the ranks that do not say within a moment that
/// they could not either. Empty when there are none. Never throws.
std::string describe_silent_ranks(c10d::Store& store, int rank, int size) noexcept;

}  // namespace fsdp::comm::detail
