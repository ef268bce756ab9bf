// SPDX-License-Identifier: Apache-2.0
/// Any c10d::Backend as a transport: gloo, MPI, UCC, or one of your own. `fsdp::init` needs none of
/// this; it is the way in for programs that already have a backend. Control goes over the same
/// backend, as bytes on the host, so one for another kind of device alone (NCCL) does not serve.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "fsdp/comm/link.hpp"

namespace c10d {
class Backend;
}

namespace fsdp::comm {

/// A group over the collectives of `backend`. In front of each collective a blocking
/// all-gather of fingerprints makes sure that all ranks are in the same one.
///
/// Sums are the backend's: their order, and the precision of bfloat16 and float16 sums, are its
/// own, so that bits may differ from those of the other transports. The divisor and `accumulate`
/// are applied after the sum, in at least float32.
///
/// `timeout` limits every wait; zero means FSDP_TIMEOUT or 5 minutes. Known numbers are reduced and
/// gathered first: a backend that averages or drops what it should sum is refused.
/// @collective all ranks of the backend @blocks
/// @throws Error kInvalidArgument for no backend, kUnsupported for one whose sums are wrong, else
/// as comm::Work::wait()
///
/// *Example*:
///
///     fsdp::World world(fsdp::comm::make_c10d_link(backend), local_rank, local_size);
Link make_c10d_link(c10::intrusive_ptr<c10d::Backend> backend,
                    std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

}  // namespace fsdp::comm
