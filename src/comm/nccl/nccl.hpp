// SPDX-License-Identifier: Apache-2.0
/// Collectives between devices by NCCL, on a stream of the transport's own; the host waits for
/// nothing. Control, and tensors on the CPU, go over a transport of the host.
///
/// NOTE [order of a collective on the device]
/// One stream carries the collectives of all groups of a rank, so they run in the order of issue:
/// two communicators whose kernels wait for each other on different ranks in different orders would
/// stop the job for ever.
///
///   start   the stream waits for what the caller's current stream has been given, then gets the
///           collective and what finishes it
///   wait    the then current stream waits for that
///
/// Tensors must not be used on another stream, or freed there, before that stream has waited.
/// Memory that sums pass through belongs to the stream, so that one piece serves all collectives.
///
/// What is announced to the job before each collective travels with its next call on the host,
/// which names ranks that have started different ones; see NOTE [a device's failures] for those
/// that never start it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "comm/nccl/nccl_library.hpp"
#include "comm/timeout.hpp"
#include "fsdp/comm/link.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// As in the table. bfloat16 is summed as bfloat16, where a caller moves that; float16 as float32.
inline Traits nccl_traits() {
  return {.name = "nccl", .waits = Waits::kStream, .sums = Sums::kBackend};
}

/// Connects the ranks of `host`, each on its own device, within `limit`.
/// @collective all ranks @blocks @throws as nccl::Communicator::connect()
Link make_nccl_link(std::shared_ptr<const nccl::Library> library, Link host, c10::Device device,
                    Milliseconds limit);

}  // namespace fsdp::comm::detail
