// SPDX-License-Identifier: Apache-2.0
/// The life of an exchange in shared memory, as predicates on one word a rank. The ring of
/// postings and its model check both use them.

// clang-format off: its tables are set by hand.
/// NOTE [life of an exchange in shared memory]
/// Each rank has a ring of slots. The n-th collective of every rank uses slot n % kRing of its own
/// ring. Only the owner writes a slot; its `state` word is ticket and phase, and grows:
///
///   kPosted   fingerprint, source and inline data are readable
///             | every rank's slot has my ticket: compare fingerprints
///   kReading  I may read the sources of all ranks; entered only if nobody has dropped
///             | all of my part is read
///   kDone     I read no more; others may still read my source
///   kDropped  instead of kReading or kDone: my source is withdrawn, this exchange cannot complete
///
/// These are all synchronisation points; a release store of `state`, seen by an acquire load of
/// `state`, orders the plain memory on both sides:
///
///   S1  posted -> read    my source is written before kPosted; peers read it after they saw
///                         kPosted
///   S2  done -> rewrite   peers read before their kDone; I write a source again after I saw kDone
///                         of all (only where the source is in place or staged: inline data and
///                         agreements are left behind in the slot)
///   S3  slot -> reuse     peers read a slot before their kDone; its owner posts ticket + kRing
///                         into it after it saw all slots of that number finished
///   S4  reading | dropped kReading and kDropped are stored, then the other side is loaded, all
///                         sequentially consistent: either the reader sees the drop and does not
///                         read, or the dropper sees the reader and waits for its end
///   S5  staging           pieces alternate between two halves; a half is written again after all
///                         peers have consumed what it held
///   S6  generation        recover() enters a new generation by a compare-and-swap after all ranks
///                         are in recover(); between its first call of recover() and the new
///                         generation a rank touches no slot. Tickets of a new generation are
///                         larger than all before, so old words in the slots mean "not there yet"
///
/// Nothing here is a lock: a process that ends at any point leaves words that the others can judge.
// clang-format on
#pragma once

#include <cstdint>

namespace fsdp::shm {

/// A collective of a generation: larger ones come later. Zero is no ticket.
using Ticket = std::uint64_t;

enum class Phase : std::uint64_t { kPosted = 0, kReading = 1, kDone = 2, kDropped = 3 };

constexpr int kSequenceBits = 38;

constexpr Ticket make_ticket(std::uint64_t generation, std::uint64_t sequence) {
  return (generation << kSequenceBits) | sequence;
}
constexpr std::uint64_t sequence_of(Ticket ticket) {
  return ticket & ((std::uint64_t{1} << kSequenceBits) - 1);
}
constexpr std::uint64_t generation_of(Ticket ticket) { return ticket >> kSequenceBits; }
constexpr std::uint64_t make_state(Ticket ticket, Phase phase) {
  return (ticket << 2) | static_cast<std::uint64_t>(phase);
}
constexpr Ticket ticket_of(std::uint64_t state) { return state >> 2; }

/// S1: the slot's content is that of `ticket`.
constexpr bool has_posted(std::uint64_t state, Ticket ticket) { return ticket_of(state) == ticket; }

constexpr bool is_in(std::uint64_t state, Ticket ticket, Phase phase) {
  return state == make_state(ticket, phase);
}

/// S2: this rank reads the sources of `ticket` no more, having read all of its part. A larger
/// ticket in the slot says the same: see S3.
constexpr bool is_done(std::uint64_t state, Ticket ticket) {
  return ticket_of(state) > ticket || is_in(state, ticket, Phase::kDone);
}

/// S3: this rank is through with everything that `ticket` had in the slots.
constexpr bool is_over(std::uint64_t state, Ticket ticket) {
  return is_done(state, ticket) || is_in(state, ticket, Phase::kDropped);
}

}  // namespace fsdp::shm
