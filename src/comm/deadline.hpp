// SPDX-License-Identifier: Apache-2.0
/// Calls that may never return, made with a limit.
#pragma once

#include <functional>

#include "comm/timeout.hpp"

namespace fsdp::comm::detail {

/// Runs `action` on a thread of its own and waits until it has returned; an exception that it
/// throws is rethrown. What `action` holds is gone by then. Returns false when it has not returned
/// in time: the thread is left behind, so what `action` uses must be its own.
/// @throws Error kPeerFailed when the user wants out; the thread is left behind, too
///
/// For requests to a store: a client has no limit for most of them and waits for ever for a server
/// that is stopped.
bool finishes_within(Milliseconds limit, std::function<void()> action);

}  // namespace fsdp::comm::detail
