// SPDX-License-Identifier: Apache-2.0
/// A transport between ranks on simulated devices, as NCCL is one between GPUs: a collective is a
/// kernel on a stream of the transport's own, the call returns at once, and Work::wait() makes the
/// current stream wait, not the host. Control, and tensors on the CPU, go over a transport of the
/// host.
///
/// NOTE [order of a collective on streams]
///
///     start   the transport's stream waits for what the caller's current stream has been given
///     wait    the current stream of that moment waits for the collective
///
/// So buffers may be read, written and freed on the stream that waited, and on no other. Gathers
/// and reductions have a stream each, as over two communicators.
#pragma once

#include "fsdp/comm/link.hpp"

namespace fsdp::test {

/// What goes wrong on purpose: the checker must find it.
enum class StreamFault {
  kNone,
  kNoInputEvent,   ///< a collective does not wait for the caller's stream
  kNoOutputEvent,  ///< Work::wait() orders nothing
};

/// For a rank on the simulated device `device`; the ranks are threads of this process.
/// @collective the ranks of `host`
comm::Link make_stream_link(const comm::Link& host, int device,
                            StreamFault fault = StreamFault::kNone);

}  // namespace fsdp::test
