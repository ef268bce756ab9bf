// SPDX-License-Identifier: Apache-2.0
/// The data plane of a group of ranks: collectives on contiguous tensors, each returning something
/// to wait on, and the memory they like best. What the engine needs, and no more; numbers on the
/// host go through comm::Job. `fsdp/comm/transports.hpp` lists the transports there are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/comm/job.hpp"
#include "fsdp/comm/link.hpp"

namespace fsdp::comm {

/// What Work::wait() of a transport holds up.
enum class Waits {
  kHost,    ///< the calling thread, until results are in place
  kStream,  ///< the current stream of the tensors' device; the host goes on
};

/// In which order a reduce-scatter adds up.
enum class Sums {
  kRankOrder,  ///< over the ranks, with at least float32 accumulation: the same bits in every run
  kHostOrder,  ///< the same on each host, then over the hosts: the same bits in every run
  kBackend,    ///< as other people's code does
};

/// What a transport guarantees; equal on all ranks. The contract suite asserts by them.
struct Traits {
  std::string name;  ///< as in the table of transports: "gloo"
  Waits waits = Waits::kHost;
  Sums sums = Sums::kRankOrder;
  /// Whether shared_memory() is there for sure and publish() takes microseconds, so that weights
  /// had better live in it.
  bool shares_memory = false;
  bool can_split = true;    ///< Job::split()
  bool can_recover = true;  ///< Job::recover()
};

/// How a reduce-scatter finishes a slice: dst = (dst if accumulate) + (sum over ranks) / divisor.
struct Finish {
  double divisor = 1.0;
  bool accumulate = false;
};

/// Collectives among `size()` ranks.
///
/// *Invariants*: every rank issues the same collectives in the same order and waits for them in the
/// same order; over `shm+gloo` the order of issue is one over all groups that two ranks share. Sums
/// run as traits() says. All tensors are contiguous, dst and src of one dtype except where a
/// reduction widens; a tensor of `size() * n` elements is read as `size()` slices of n elements,
/// slice r belonging to rank r. Counts of zero are allowed. Which devices a transport takes,
/// refuses() says.
///
/// *Errors*: a collective throws Error kInvalidArgument for an undefined or non-contiguous tensor,
/// unequal dtypes or sizes that do not fit, and kUnsupported for a tensor of a device that the
/// transport does not take, before anything is sent, so that the ranks stay in step; kPeerFailed
/// when the group has failed before. What peers do is reported by Work::wait().
///
/// *Groups, failures, recovery*: those of the group's Job. *Thread safety*: one thread at a time
/// per rank, over all groups.
class Transport {
 public:
  virtual ~Transport() = default;

  /// As Job::rank() and Job::size() of the same group.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Traits& traits() const = 0;

  /// Why this transport does not take tensors of `device`, and what serves; nothing when it does.
  virtual std::optional<std::string> refuses(c10::Device device) const = 0;

  /// Gathers every rank's `src` (n elements) into `dst` (size()*n elements), own slice included.
  /// `src` may be the own slice of `dst`. @collective all ranks
  virtual std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) = 0;

  /// Reduces slice rank() of every rank's `src` (size()*n elements) into `dst` (n elements), of
  /// float32, float64, bfloat16, float16, int32 or int64. `dst` may be the own slice of `src`, else
  /// they must not overlap.
  ///
  /// `dst` may be float32 for a `src` of bfloat16 or float16: half the bytes move, the sum is that
  /// of float32 and is not rounded. (Where Sums::kBackend, float32 moves, as a backend sums what it
  /// moves.)
  /// @collective all ranks @throws Error kUnsupported for another dtype, kInvalidArgument for a
  /// divisor of zero
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                               const Label& label) = 0;

  /// Copies `buffer` of rank `root` to every rank, in place. @collective all ranks, same root
  virtual std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) = 0;

  /// The gather of what lies in shared_memory(): complete when every rank has started it, so that
  /// what each wrote before is seen by all. Moves no bytes. @collective all ranks
  virtual std::unique_ptr<Work> publish(const Label& label) = 0;

  /// buffer = (sum over all ranks) / divisor, in place, for a `buffer` of any size: a
  /// reduce-scatter into the own slice and an all-gather of the slices, for pieces of at most
  /// `kAllReducePieceBytes`, two of them under way at a time; a small one is gathered and summed in
  /// rank order. The first pieces move from now on, the others while wait() lasts. All ranks get
  /// the same bits.
  /// @collective all ranks; works are waited for in the same order on all ranks
  /// @memory staging of two reduce-scatters of a piece: reserve_staging(min(buffer,
  /// kAllReducePieceBytes), 2) @throws as reduce_scatter
  std::unique_ptr<Work> start_all_reduce(at::Tensor buffer, double divisor, const Label& label);

  static constexpr std::int64_t kAllReducePieceBytes = std::int64_t{16} << 20;

  /// start_all_reduce() and its wait.
  /// @collective all ranks @blocks until every rank is here @throws as reduce_scatter and
  /// Work::wait() do
  void all_reduce(at::Tensor buffer, const Label& label);

  /// Reserves what `in_flight` concurrent reduce-scatters of sources of up to `max_src_bytes` need
  /// beyond the caller's buffers, so that steady state allocates nothing. Returns those bytes; the
  /// engine enters them in its ledger as transport staging. Local, not a collective.
  virtual std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) = 0;

  /// The same for `in_flight` concurrent all-gathers into tensors of up to `max_dst_bytes`. Nothing
  /// where tensors move without a copy. Local, not a collective.
  virtual std::int64_t reserve_gathers(std::int64_t max_dst_bytes, int in_flight);

  /// Memory of `bytes` zero bytes that all ranks see at once, as an int64-aligned byte tensor, for
  /// weights that need no copy to be gathered; undefined, on all ranks, where the transport cannot
  /// provide it (`c10d`; over several hosts; `shm` throws kIo). Lives with its tensors.
  /// @collective all ranks, same bytes @blocks @throws Error kMismatch for unequal bytes
  virtual at::Tensor shared_memory(std::int64_t bytes, const Label& label) = 0;

  /// Memory of `bytes` for the sources of collectives, as a byte tensor of any content: where the
  /// transport can read it on all ranks (`shm`) without a copy, else plain memory. Local. Lives as
  /// long as a tensor refers to it. @throws Error kIo when there is too little shared memory
  virtual at::Tensor buffer(std::int64_t bytes) = 0;

  /// The data plane of `part`, which the Job of this group was split into; see Link::split().
  /// Local.
  virtual std::shared_ptr<Transport> split(const std::shared_ptr<Job>& part) = 0;
};

}  // namespace fsdp::comm
