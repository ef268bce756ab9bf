// SPDX-License-Identifier: Apache-2.0
/// Transfers between the host and an accelerator.
#pragma once

#include <memory>

#include "fsdp/engine/offload.hpp"

namespace fsdp::engine {

/// Copies on a stream of its own, beside computation where the host's memory is pinned.
///
/// NOTE [transfers on a stream]
/// A transfer begins behind what its starter's stream had been given by then: kernels that still
/// read the slot that it fills, or that write what it reads. wait() blocks the host until the copy
/// has ended. It is called a whole unit later, so there is little to wait for, and it spares three
/// hazards: an optimizer, on the host, that reads a gradient too early or writes a slice too early,
/// and a kernel that reads a slot too early. The host runs ahead of the device by one unit then.
/// @throws c10::Error where `device` has no streams, as the CPU
std::shared_ptr<Copier> make_stream_copier(c10::Device device);

}  // namespace fsdp::engine
