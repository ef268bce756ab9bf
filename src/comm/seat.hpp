// SPDX-License-Identifier: Apache-2.0
/// A rank's place in a group of ranks: the whole job, or a part of it that split() has made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/failure/collective_log.hpp"
#include "comm/fingerprint.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail {

/// *Invariants*: `ranks` ascend; `ranks[index]` is this rank.
struct Seat {
  /// Tells groups apart that share ranks: 0 is the whole job. Groups of one split share a number,
  /// as they share no rank.
  int group = 0;
  std::string name = {};   ///< of the split; empty for the whole job
  std::vector<int> ranks;  ///< the members, as ranks of the whole job
  int index = 0;           ///< this rank among them
  std::shared_ptr<CollectiveLog> log;
  std::shared_ptr<Announced> announced = std::make_shared<Announced>();
  std::shared_ptr<void> lease =
      {};  ///< the number is free again when the last seat with it is gone

  int rank() const { return ranks[static_cast<std::size_t>(index)]; }
  int size() const { return static_cast<int>(ranks.size()); }
};

using SeatPointer = std::shared_ptr<const Seat>;

/// The seat of `rank` in a whole job of `size` ranks.
SeatPointer whole_seat(const std::string& transport, int rank, int size);

/// The same for the ranks of one host, `first_rank` and those that follow it, of a larger job.
SeatPointer host_seat(const std::string& transport, int index, int size, int first_rank,
                      int job_size);

/// The fingerprint of this rank's n-th collective in that group, in this generation.
Fingerprint make_fingerprint(Description description, std::uint64_t sequence, const Seat& seat,
                             std::uint64_t generation);

/// The numbers of groups that this rank uses. *Thread safety*: one thread at a time takes one; they
/// may be given back on any.
class GroupNumbers {
 public:
  /// Numbers that there are, 0 included.
  static constexpr int kNumbers = 64;

  GroupNumbers();

  std::uint64_t used() const;
  std::shared_ptr<void> take(int number);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// What split() does before a transport makes the group: all ranks of `parent` tell which group
/// they want, and agree on its number. `transport` stands in its log.
/// @collective all ranks of `parent` @blocks
/// @throws Error on all ranks: kInvalidArgument for a list that is empty, does not ascend, leaves
/// the own rank out or names one that is not there; kMismatch where two ranks of a group give
/// different lists, or the label differs
SeatPointer agree_on_split(Job& parent, const std::string& transport, const Seat& seat,
                           GroupNumbers& numbers, std::span<const int> ranks,
                           const std::string& label, int world_size);

}  // namespace fsdp::comm::detail
