// SPDX-License-Identifier: Apache-2.0
/// Parameters, gradients and optimizer state in the host's memory, weights and activations on the
/// module's device. See docs/how-to/offload-to-the-host.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace fsdp {

/// Moves bytes between the memory in which shards live (their *home*) and that in which weights are
/// gathered. One per engine. *Invariants*: what has been started is waited for, once each.
/// *Thread safety*: one thread at a time.
class Copier {
 public:
  virtual ~Copier() = default;
  /// Begins dst = src, both contiguous, of one dtype and size, and alive and untouched until wait()
  /// has returned. What was enqueued on the device before, and reads or writes them, comes first.
  /// Returns the ticket for wait().
  virtual std::uint64_t start(at::Tensor dst, at::Tensor src) = 0;
  /// Returns when `dst` has the values, for the host and for all that the device is given next.
  /// @blocks @throws what the copy failed with; it is over then, too
  virtual void wait(std::uint64_t ticket) = 0;
};

/// Shards, gradient shards and optimizer state live on the host. A rank keeps none of them on the
/// device: before each gather its slice is sent there, a transfer per unit, and each reduced
/// gradient comes back, is added to what the gradient shard has, and is there when backward
/// returns. Optimizers, clipping and checkpoints run on the host.
///
/// Where the module's device is the CPU there is one memory only, and this changes nothing: the
/// same memory, the same copies, the same bits.
/// @memory on the host: shards, gradients, moments, low-precision copies, and twice the gradient
/// shard of the largest unit (three times with shards and replicas). On the device instead of all
/// that: the latter once more, and weights that are never gathered (kReplicate). The ledger has
/// both to the byte, see memory::on_host()
struct Offload {
  /// Page-locked host memory: transfers then run beside computation.
  bool pin_memory = true;
  /// For tests: makes the transfers in place of the device's streams. With one, shards have memory
  /// of their own also where the device is the CPU, so that all of offloading runs there. One that
  /// no other engine uses.
  std::shared_ptr<Copier> copier = {};
};

}  // namespace fsdp
