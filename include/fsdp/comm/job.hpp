// SPDX-License-Identifier: Apache-2.0
/// The control plane of a group of ranks: what they tell each other on the host, in bytes. Its data
/// plane is comm::Transport. Both are faces of one line: every call on either has its number in one
/// sequence and carries a fingerprint, so that ranks that meet in different calls, whichever faces
/// they are on, learn it at once and say which two met.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace fsdp::comm {

/// The kinds of collective, as they travel in fingerprints and appear in messages. An exchange
/// travels as an all-gather, a barrier as an agreement, an all-reduce as the reduce-scatters and
/// all-gathers that it is made of.
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
  /// kTimeout naming the missing ranks, kPeerFailed with the first failure; the group is of no use
  /// after either of the last two
  virtual void wait() = 0;
};

/// A collective that moves tensors of a device, past the host's transports.
struct Announcement {
  Operation operation = Operation::kAllGather;
  Label label = {};
  std::int64_t bytes = 0;  ///< of one rank's slice
  std::string dtype = {};
};

/// Control among `size()` ranks.
///
/// *Invariants*: every rank makes the same calls in the same order, over Job and Transport of a
/// group together. *Groups*: split() makes parts. They belong to one whole: the first failure in
/// any of them ends the waits in all, recover() and set_timeout() called on one act on all, and
/// messages name ranks by their number in the whole. *Thread safety*: one thread at a time per
/// rank, over all groups.
class Job {
 public:
  virtual ~Job() = default;

  /// This rank among, and the number of, the ranks of this group.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Every rank's `own` into `all`, by rank: all.size() is size() * own.size(), which is equal on
  /// all ranks. @collective all ranks @throws Error kInvalidArgument for sizes that do not fit,
  /// kPeerFailed when the group has failed before; else Work::wait() throws
  virtual std::unique_ptr<Work> start_exchange(std::span<const std::byte> own,
                                               std::span<std::byte> all, const Label& label) = 0;
  /// start_exchange() and its wait. @collective all ranks @blocks until every rank is here
  void exchange(std::span<const std::byte> own, std::span<std::byte> all, const Label& label) {
    start_exchange(own, all, label)->wait();
  }

  /// Returns when every rank has called it.
  /// @collective all ranks @blocks until every rank is here @throws as Work::wait()
  virtual void barrier(const Label& label) = 0;

  /// Copies `bytes` of rank `root` to every rank, in place.
  /// @collective all ranks, same root and size @blocks @throws as Work::wait()
  virtual void broadcast_bytes(std::span<std::byte> bytes, int root, const Label& label) = 0;

  /// What a transport of a device calls before it starts a collective there. From then on each call
  /// of this group also compares what its ranks have announced since they were connected or have
  /// recovered: ranks that parted on the device learn it at the next call on the host. Local, does
  /// not block.
  virtual void announce(const Announcement& announcement) = 0;

  /// The control plane of a part of the ranks: those in `ranks`, ascending, numbered there from 0
  /// in that order. Each rank passes the list of its own group; the lists are a partition of all
  /// ranks. `label` names the group in messages. Costs one exchange of 128 + size() bytes per rank
  /// (`shm`: two more) and no connection; a group of one rank is an identity that sends nothing.
  /// May be split again. At most 63 groups per rank at a time. Link::split() splits both faces.
  /// @collective all ranks of this group, same label @blocks
  /// @throws Error on all ranks: kInvalidArgument for a list that is empty, does not ascend, leaves
  /// its own rank out or names a rank that is not there; kMismatch where two ranks of a group give
  /// different lists; kIo when there is too little shared memory; kUnsupported without
  /// Traits::can_split
  virtual std::shared_ptr<Job> split(const std::vector<int>& ranks, const std::string& label) = 0;

  /// How long any wait may last. Default: FSDP_TIMEOUT in seconds, else 5 minutes.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual std::chrono::milliseconds timeout() const = 0;

  /// Makes a group usable again in which some ranks have failed and others have not: whatever is
  /// under way on any rank ends with kPeerFailed, numbering starts anew, and Work objects from
  /// before are void (destroy them before their buffers are used again). The n-th call of one rank
  /// meets the n-th call of the others.
  /// @collective all ranks; a process that has ended cannot take part
  /// @blocks until all are here, at most as long as any wait
  /// @throws Error kTimeout naming the ranks that did not come, kPeerFailed when they cannot
  /// connect again, kUnsupported without Traits::can_recover
  virtual void recover() = 0;

  /// How many times recover() has succeeded; equal on all ranks. What began in an earlier
  /// generation must be dropped.
  virtual std::uint64_t generation() const = 0;

  /// Informs all ranks that this one has failed and why: waits that are under way on them, and all
  /// collectives to come, throw kPeerFailed with the first text published until recover(). Local.
  virtual void publish_failure(const std::string& text) noexcept = 0;

  /// The first failure that this rank knows of, with its rank in front; empty for none. Does not
  /// wait for others: news of another host may come with the next call.
  virtual std::string first_failure() noexcept = 0;
};

/// Every rank's `mine`, by rank; of a type that is its bytes, the same on all ranks.
/// @collective all ranks @blocks @throws as Job::exchange()
template <class Value>
std::vector<Value> gather_values(Job& job, const Value& mine, const std::string& name) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(job.size()));
  job.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
               {.name = name});
  return all;
}

/// The same of equally many values of each rank: those of rank r begin at r * mine.size().
template <class Value>
std::vector<Value> gather_values(Job& job, const std::vector<Value>& mine,
                                 const std::string& name) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(mine.size() * static_cast<std::size_t>(job.size()));
  job.exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
               {.name = name});
  return all;
}

/// Rank 0's `value`. @collective all ranks @blocks @throws as Job::broadcast_bytes()
template <class Value>
Value value_of_first(Job& job, Value value, const std::string& name) {
  static_assert(std::is_trivially_copyable_v<Value>);
  job.broadcast_bytes(std::as_writable_bytes(std::span(&value, 1)), 0, {.name = name});
  return value;
}

}  // namespace fsdp::comm
