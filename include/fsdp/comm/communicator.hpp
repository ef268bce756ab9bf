// SPDX-License-Identifier: Apache-2.0
/// What the engine needs from a transport, and no more: collectives on contiguous tensors, each
/// returning something to wait on. Implementations: `threads` (ranks are threads of one process),
/// `shm` (processes of one host read each other's memory), `gloo` (direct exchange between
/// processes), `shm+gloo` (both: shm inside each of several hosts), `c10d` (any c10d::Backend).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::comm {

/// The kinds of collective, as they travel in fingerprints and appear in messages. An all-reduce
/// travels as the reduce-scatters and all-gathers that it is made of.
enum class Operation : std::int32_t {
  kAllGather = 1,
  kReduceScatter = 2,
  kBroadcast = 3,
  kAgree = 4,
};

/// The name of an operation in messages, for example "all-gather".
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
/// returned or the object is destroyed. An object that is destroyed without `wait` is
/// completed or ends the group: peers then throw kPeerFailed. *Thread safety*: one thread at a
/// time.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until this rank's part is complete: results are in place and its source may be written
  /// again. May be called once only.
  /// @blocks until every peer has started the same collective
  /// @throws Error kMismatch when a peer is in another collective (both are named, on both sides),
  /// kTimeout naming the missing ranks, kPeerFailed with the first failure; the communicator is of
  /// no use after either
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
/// same order; over `shm+gloo` the order of issue is one over all groups that two ranks share. Sums
/// run in rank order with at least fp32 accumulation, so that the same inputs give the same bits in
/// every run and on every rank (`shm+gloo`: in rank order on each host, then over the hosts;
/// `c10d`: as its backend sums). All tensors are contiguous, dst and src of one dtype but where a
/// reduction widens; a tensor of `size() * n` elements is read as `size()` slices of n elements,
/// slice r belonging to rank r. Counts of zero are allowed. Which devices a transport takes,
/// refuses() says.
///
/// *Errors*: a collective throws Error kInvalidArgument for an undefined or non-contiguous tensor,
/// unequal dtypes or sizes that do not fit, and kUnsupported for a tensor of a device that the
/// transport does not take, before anything is sent, so that the ranks stay in step; kPeerFailed
/// when the group has failed before. What peers do is told by Work::wait().
///
/// *Groups*: split() makes communicators over parts of the ranks. They are parts of one job: the
/// first failure in any of them ends the waits in all, recover() and set_timeout() called on one
/// act on all, and messages name ranks by their number in the whole job.
///
/// *Thread safety*: one thread at a time per rank, over all groups of a job. Made by factories that
/// return a shared_ptr.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;

  /// This rank among, and the number of, the ranks of this communicator.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The name of the transport: "threads", "shm", "gloo", "shm+gloo", "c10d".
  virtual std::string transport() const = 0;

  /// Why this transport does not take tensors of `device`, and what serves; nothing when it does.
  virtual std::optional<std::string> refuses(c10::Device device) const;

  /// Gathers every rank's `src` (n elements) into `dst` (size()*n elements), own slice included.
  /// `src` may be the own slice of `dst`. @collective all ranks
  virtual std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) = 0;

  /// Reduces slice rank() of every rank's `src` (size()*n elements) into `dst` (n elements), of
  /// float32, float64, bfloat16, float16, int32 or int64. `dst` may be the own slice of `src`, else
  /// they must not overlap.
  ///
  /// `dst` may be float32 for a `src` of bfloat16 or float16: half the bytes move, the sum is that
  /// of float32 and is not rounded. (`c10d` moves float32 then, as a backend sums what it moves.)
  /// @collective all ranks @throws Error kUnsupported for another dtype, kInvalidArgument for a
  /// divisor of zero
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                               const Label& label) = 0;

  /// Copies `buffer` of rank `root` to every rank, in place. @collective all ranks, same root
  virtual std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) = 0;

  /// A barrier that carries the label: complete when every rank has started it.
  /// @collective all ranks
  virtual std::unique_ptr<Work> agree(const Label& label) = 0;

  /// buffer = (sum over all ranks, in rank order) / divisor, in place, for a CPU `buffer` of any
  /// size: a reduce-scatter into the own slice and an all-gather of the slices, for pieces of at
  /// most `kAllReducePieceBytes`, two of them under way at a time; a small one is gathered. The
  /// first pieces move from now on, the others while wait() lasts. All ranks get the same bits.
  /// @collective all ranks; works are waited for in the same order on all ranks
  /// @memory staging of two reduce-scatters of a piece: reserve_staging(min(buffer,
  /// kAllReducePieceBytes), 2) @throws as reduce_scatter
  std::unique_ptr<Work> start_all_reduce(at::Tensor buffer, double divisor, const Label& label);

  static constexpr std::int64_t kAllReducePieceBytes = std::int64_t{16} << 20;

  /// start_all_reduce() and its wait; for counts and norms.
  /// @collective all ranks @blocks until every rank is here @throws as reduce_scatter and
  /// Work::wait() do
  void all_reduce(at::Tensor buffer, const Label& label);

  /// Reserves what `in_flight` concurrent reduce-scatters of sources of up to `max_src_bytes` need
  /// beyond the caller's buffers, so that steady state allocates nothing. Returns those bytes; the
  /// engine enters them in its ledger as transport staging. Local, not a collective.
  virtual std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) = 0;

  /// Memory of `bytes` zero bytes that all ranks see at once, as an int64-aligned byte tensor, for
  /// weights that need no copy to be gathered; undefined, on all ranks, where the transport cannot
  /// provide it (`c10d`; over several hosts; `shm` throws kIo). Lives with its tensors.
  /// @collective all ranks, same bytes @blocks @throws Error kMismatch for unequal bytes
  virtual at::Tensor shared_memory(std::int64_t bytes, const Label& label);

  /// Whether shared_memory() is there for sure and an agreement takes microseconds, so that weights
  /// had better live in it.
  virtual bool shares_memory() const { return false; }

  /// CPU memory of `bytes` for the sources of collectives, as a byte tensor of any content: where
  /// the transport can read it on all ranks (`shm`) without a copy, else plain memory. Local. Lives
  /// as long as a tensor refers to it. @throws Error kIo when there is too little shared memory
  virtual at::Tensor buffer(std::int64_t bytes);

  /// A communicator over a part of this one's ranks: those in `ranks`, ascending, numbered there
  /// from 0 in that order. Each rank passes the list of its own group; the lists are a partition of
  /// all ranks. `label` names the group in messages. Costs one all-gather of size() bytes a rank
  /// (`shm`: two more) and no connection; a group of one rank is an identity that sends nothing.
  /// May be split again. At most 63 groups a rank at a time.
  /// @collective all ranks of this communicator, same label @blocks
  /// @throws Error on all ranks: kInvalidArgument for a list that is empty, does not ascend, leaves
  /// its own rank out or names a rank that is not there; kMismatch where two ranks of a group give
  /// different lists; kIo when there is too little shared memory; kUnsupported for `c10d`
  virtual std::shared_ptr<Communicator> split(const std::vector<int>& ranks,
                                              const std::string& label);

  /// How long any wait may last. Default: FSDP_TIMEOUT in seconds, else 5 minutes.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Makes a group usable again in which some ranks have failed and others have not: whatever is
  /// under way on any rank ends with kPeerFailed, numbering starts anew, and Work objects from
  /// before are void (destroy them before their buffers are used again). The n-th call of one rank
  /// meets the n-th call of the others.
  /// @collective all ranks; a process that has ended cannot take part
  /// @blocks until all are here, at most as long as any wait
  /// @throws Error kTimeout naming the ranks that did not come, kPeerFailed when they cannot
  /// connect again, kUnsupported for `c10d`, whose backend belongs to the caller
  virtual void recover() = 0;

  /// How many times recover() has succeeded; equal on all ranks. What began in an earlier
  /// generation must be dropped.
  virtual std::uint64_t generation() const = 0;

  /// Tells all ranks that this one has failed and why: waits that are under way on them, and all
  /// collectives to come, throw kPeerFailed with the first text published until recover(). Local.
  virtual void publish_failure(const std::string& text) noexcept = 0;
};

}  // namespace fsdp::comm
