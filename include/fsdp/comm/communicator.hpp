// SPDX-License-Identifier: Apache-2.0
/// What the engine needs from a transport, and no more: asynchronous collectives on contiguous
/// tensors, each returning something to wait on. Implementations: `threads` (ranks are threads of
/// one process), `gloo` (direct exchange between processes), `c10d` (any c10d::Backend).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::comm {

/// The kinds of collective, as they travel in fingerprints and appear in messages.
enum class Operation : std::int32_t {
  kAllGather = 1,
  kReduceScatter = 2,
  kBroadcast = 3,
  kAgree = 4,
  kAllReduce = 5,
};

const char* to_string(Operation operation);

/// Who a collective is for. It travels with the collective as a fingerprint, so that ranks that
/// meet in different operations learn it at once, on all ranks, and say which two met.
struct Label {
  int unit = -1;          ///< index of the unit, -1 when no unit is concerned
  std::string name = {};  ///< what a person reads: the unit's name or the calling function
};

/// A collective under way.
///
/// *Invariants*: the buffers handed to the collective stay valid and untouched until `wait`
/// returned or the object is destroyed. *Thread safety*: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until this rank's part is complete: results are in place and its source may be written
  /// again. May be called once only.
  /// @blocks until every peer has started the same collective.
  /// @throws Error kMismatch when a peer is in another collective (both are named, on both sides),
  /// kTimeout, or kPeerFailed.
  virtual void wait() = 0;
};

/// How a reduce-scatter finishes a slice: dst = (dst if accumulate) + (sum over ranks) / divisor.
struct Reduction {
  double divisor = 1.0;
  bool accumulate = false;
};

/// Collectives among `size()` ranks.
///
/// *Invariants*: every rank issues the same collectives in the same order and waits for them in the
/// same order. Sums run in rank order with at least fp32 accumulation, so that the same inputs give
/// the same bits in every run and on every rank. All tensors are contiguous; a tensor of
/// `size() * n` elements is read as `size()` slices of n elements, slice r belonging to rank r.
/// Counts of zero are allowed.
/// *Thread safety*: one thread at a time per rank.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The name of the transport: "threads", "gloo", "c10d".
  virtual std::string transport() const = 0;

  /// Gathers every rank's `src` (n elements) into `dst` (size()*n elements), own slice included.
  /// `src` may be the own slice of `dst`. @collective all ranks
  virtual std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) = 0;

  /// Reduces slice rank() of every rank's `src` (size()*n elements) into `dst` (n elements).
  /// `dst` and `src` must not overlap. @collective all ranks
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                               const Label& label) = 0;

  /// Copies `buffer` of rank `root` to every rank. @collective all ranks
  virtual std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) = 0;

  /// A barrier that carries the label: complete when every rank has started it.
  /// @collective all ranks
  virtual std::unique_ptr<Work> agree(const Label& label) = 0;

  /// Sums a small `buffer` over all ranks in rank order, in place; blocks. Meant for counts and
  /// norms. @collective all ranks @memory allocates size() times the buffer
  virtual void all_reduce(at::Tensor buffer, const Label& label);

  /// Reserves what `in_flight` concurrent reduce-scatters of sources of up to `max_src_bytes` need
  /// beyond the caller's buffers, so that steady state allocates nothing. Returns those bytes; the
  /// engine enters them in its ledger as transport staging. Local, not a collective.
  virtual std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) = 0;

  /// Memory of `bytes` zero bytes that all ranks see at once, as an int64-aligned byte tensor, for
  /// weights that need no copy to be gathered; undefined where the transport cannot provide it.
  /// @collective all ranks, same bytes
  virtual at::Tensor shared_memory(std::int64_t bytes, const Label& label);

  /// How long any wait may last. Default 5 minutes (FSDP_TIMEOUT in seconds).
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

}  // namespace fsdp::comm
