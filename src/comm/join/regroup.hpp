// SPDX-License-Identifier: Apache-2.0
/// How ranks that are not connected meet again, or learn who is missing, with nothing but the job's
/// store to go by.
#pragma once

#include <cstdint>
#include <string>

#include "comm/failure/first_failure.hpp"
#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

/// Returns once every rank of the group has called it for this generation; waits until `deadline`,
/// which is `timeout` behind the begin. A store that is late, as its process stood still, is waited
/// for as long.
/// @throws Error kTimeout naming the ranks that did not come (this rank then no longer counts as
/// there), kPeerFailed when the store cannot be reached
void meet_again(FailureBoard& board, int rank, int size, std::uint64_t generation,
                Milliseconds timeout, Clock::time_point deadline);

/// Says to those that are about to call fail_to_connect() that this rank could not connect either.
/// Never throws.
void announce_not_connected(const c10::intrusive_ptr<c10d::Store>& store, int rank) noexcept;

/// Throws Error kPeerFailed for a rank that could not connect to its peers, naming those that do
/// not say within a moment that they could not either.
[[noreturn]] void fail_to_connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const std::string& cause);

}  // namespace fsdp::comm::detail
