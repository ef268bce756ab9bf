// SPDX-License-Identifier: Apache-2.0
/// Tensors of a device over a transport of the host: each collective copies what it sends into
/// pinned memory, is a collective of the host there, and copies what it got back. It needs nothing
/// of the device but copies, so it serves every device, and several ranks on one; and it holds up
/// the host twice a collective.
///
/// NOTE [staged order]
/// All copies run on one stream of the transport's own.
///
///   start   the stream waits for what the caller's current stream has been given, then copies to
///           the host, and the host waits for that
///   wait    the collective of the host ends, the stream copies to the device, and the host waits
///           for that: results are in place for every stream
///
/// The host has waited for each copy, so neither the caller's tensors nor the pinned memory need to
/// be recorded on a stream.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "fsdp/comm/link.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// As in the table; a connected one says of sums, groups and recovery what its host transport does.
inline Traits staged_traits() { return {.name = "staged"}; }

/// `host`'s control, and tensors of `device` over its transport. Local.
Link make_staged_link(Link host, c10::Device device);

}  // namespace fsdp::comm::detail
