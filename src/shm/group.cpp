// SPDX-License-Identifier: Apache-2.0
#include "shm/group.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include "fsdp/base/error.hpp"
#include "shm/waiting.hpp"

namespace fsdp::shm {

std::size_t Group::bytes(int size) { return ControlBlock::bytes(static_cast<std::size_t>(size)); }

Group::Group(std::shared_ptr<Segment> segment, const Identity& identity, int rank, int size,
             int first_rank)
    : rank_(static_cast<std::size_t>(rank)),
      size_(static_cast<std::size_t>(size)),
      members_(size_),
      first_rank_(first_rank),
      segment_(std::move(segment)),
      control_(segment_->data(), size_),
      identity_(identity),
      processes_(size_) {
  std::iota(members_.begin(), members_.end(), 0);
  FSDP_CHECK(segment_->bytes() == bytes(size), ErrorCode::kMismatch, "rank ", rank, " expects ",
             size, " ranks, ", bytes(size), " bytes of shared memory, but finds ",
             segment_->bytes(),
             " bytes: WORLD_SIZE differs between the ranks, or their versions do");
  RankBlock& mine = block(rank_);
  mine.cores = own_cores();
  mine.process.store(static_cast<std::int32_t>(::getpid()), std::memory_order_relaxed);
  mine.presence.store(Presence::kJoined, std::memory_order_release);
  ring(mine.bell);
}

std::size_t Group::part_bytes(int size) {
  return static_cast<std::size_t>(size) * (kRing * sizeof(Slot) + kStagingBytes);
}

Group::Group(std::shared_ptr<Group> job, std::shared_ptr<std::byte> memory,
             std::vector<int> members, int index)
    : rank_(static_cast<std::size_t>(index)),
      size_(members.size()),
      members_(members.begin(), members.end()),
      sequence_generation_(job->generation_),
      whole_(std::move(job)),
      memory_(std::move(memory)),
      control_(nullptr, 0) {}

Group::~Group() {
  if (!whole_) {
    leave();
  }
}

void Group::leave() noexcept {
  block(rank_).presence.store(Presence::kLeft, std::memory_order_seq_cst);
  ring(block(rank_).bell);
}

WaitEnd Group::await_all_joined(Clock::time_point deadline) {
  const WaitEnd end = await_each(0, deadline, [this](std::size_t peer) {
    return block(peer).presence.load(std::memory_order_acquire) != Presence::kAbsent;
  });
  if (end.kind != WaitEnd::kReady) {
    return end;
  }
  CoreMask all;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const std::int32_t process = block(peer).process.load(std::memory_order_relaxed);
    if (process != ::getpid()) {
      processes_[peer] = std::make_unique<ProcessWatch>(process);
    }
    for (int word = 0; word < CoreMask::kWords; ++word) {
      all.words[word] |= block(peer).cores.words[word];
    }
  }
  // With more ranks than cores a rank that spins keeps the one it waits for from running.
  if (static_cast<int>(size_) <= count(all)) {
    spin_ = kSpin;
  }
  return end;
}

// ---- exchanges --------------------------------------------------------------------------------

void Group::set_phase(Ticket ticket, Phase phase) {
  // Sequentially consistent for S4; a store of one word, so the price is that of a fence.
  slot(rank_, ticket).state.store(make_state(ticket, phase), std::memory_order_seq_cst);
}

void Group::follow_generation() {
  if (sequence_generation_ != generation()) {
    sequence_generation_ = generation();
    sequence_ = 0;
  }
}

Ticket Group::next_ticket() {
  follow_generation();
  const Ticket next = make_ticket(generation(), sequence_ + 1);
  FSDP_CHECK(sequence_ < kRing || is_over(state(rank_, next), next - kRing),
             ErrorCode::kInvalidArgument, "rank ", job_rank(), " starts a collective while ", kRing,
             " are under way: wait for some of them first");
  ++sequence_;
  return next;
}

WaitEnd Group::await_slot(Ticket ticket, Clock::time_point deadline) {
  if (sequence_of(ticket) <= kRing) {
    return {};
  }
  const Ticket before = ticket - kRing;
  return await_each(ticket, deadline,
                    [&](std::size_t peer) { return is_over(state(peer, before), before); });
}

void Group::post(Ticket ticket, const FingerprintBytes& fingerprint, const Source& source,
                 const void* data, std::size_t inline_bytes) {
  Slot& mine = slot(rank_, ticket);
  mine.fingerprint = fingerprint;
  mine.source = source;
  if (source.kind == Source::kInline && inline_bytes > 0) {
    std::memcpy(mine.inline_data, data, inline_bytes);
  }
  mine.staged.store(0, std::memory_order_relaxed);
  mine.consumed.store(0, std::memory_order_relaxed);
  set_phase(ticket, Phase::kPosted);
  ring(block(rank_).bell);
}

WaitEnd Group::await_posted(Ticket ticket, Clock::time_point deadline) {
  if (is_between_generations() || generation_of(ticket) != generation()) {
    return {WaitEnd::kRecovered, -1};
  }
  return await_each(ticket, deadline,
                    [&](std::size_t peer) { return has_posted(state(peer, ticket), ticket); });
}

const FingerprintBytes& Group::fingerprint(Ticket ticket, std::size_t rank) const {
  return slot(rank, ticket).fingerprint;
}

const Source& Group::source(Ticket ticket, std::size_t rank) const {
  return slot(rank, ticket).source;
}

const std::byte* Group::inline_data(Ticket ticket, std::size_t rank) const {
  return slot(rank, ticket).inline_data;
}

WaitEnd Group::begin_reading(Ticket ticket) {
  set_phase(ticket, Phase::kReading);
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (is_in(slot(peer, ticket).state.load(std::memory_order_seq_cst), ticket, Phase::kDropped)) {
      set_phase(ticket, Phase::kDropped);
      ring(block(rank_).bell);
      return {WaitEnd::kDropped, job_rank_of(peer)};
    }
  }
  return {};
}

void Group::finish(Ticket ticket) {
  set_phase(ticket, Phase::kDone);
  ring(block(rank_).bell);
}

WaitEnd Group::await_done(Ticket ticket, Clock::time_point deadline) {
  return await_each(ticket, deadline,
                    [&](std::size_t peer) { return is_done(state(peer, ticket), ticket); });
}

void Group::drop(Ticket ticket, Clock::time_point deadline) noexcept {
  if (ticket_of(state(rank_, ticket)) != ticket) {
    return;  // of an earlier generation, and its slot has another use
  }
  const bool is_in_place = source(ticket, rank_).kind == Source::kInPlace;
  set_phase(ticket, Phase::kDropped);
  ring(block(rank_).bell);
  for (std::size_t peer = 0; is_in_place && peer < size_; ++peer) {
    const auto is_reading = [&] {
      return is_in(slot(peer, ticket).state.load(std::memory_order_seq_cst), ticket,
                   Phase::kReading);
    };
    // Rare, short and at the end of something: no need for the bell.
    while (peer != rank_ && is_reading() && Clock::now() < deadline && !has_process_ended(peer)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

// ---- staging ----------------------------------------------------------------------------------

std::byte* Group::own_half(std::uint32_t piece) const {
  return staging(rank_) + piece % 2 * (kStagingBytes / 2);
}

const std::byte* Group::half_of(std::size_t rank, std::uint32_t piece) const {
  return staging(rank) + piece % 2 * (kStagingBytes / 2);
}

void Group::show_staged(Ticket ticket, std::uint32_t pieces) {
  slot(rank_, ticket).staged.store(pieces, std::memory_order_release);
  ring(block(rank_).bell);
}

void Group::show_consumed(Ticket ticket, std::uint32_t pieces) {
  slot(rank_, ticket).consumed.store(pieces, std::memory_order_release);
  ring(block(rank_).bell);
}

WaitEnd Group::await_staged(Ticket ticket, std::size_t rank, std::uint32_t pieces,
                            Clock::time_point deadline) {
  return await(rank, ticket, deadline,
               [&] { return slot(rank, ticket).staged.load(std::memory_order_acquire) >= pieces; });
}

WaitEnd Group::await_consumed(Ticket ticket, std::uint32_t pieces, Clock::time_point deadline) {
  return await_each(ticket, deadline, [&](std::size_t peer) {
    return slot(peer, ticket).consumed.load(std::memory_order_acquire) >= pieces;
  });
}

// ---- segments ---------------------------------------------------------------------------------

std::uint32_t Group::publish_segment(const Segment& segment) {
  FSDP_ASSERT(!whole_, "segments are the whole job's");
  auto& entries = block(rank_).segments;
  for (std::uint32_t entry = 0; entry < kSegments; ++entry) {
    const std::uint32_t version = entries[entry].version.load(std::memory_order_relaxed);
    if (version % 2 == 0) {
      entries[entry].descriptor.store(segment.address().descriptor, std::memory_order_relaxed);
      entries[entry].version.store(version + 1, std::memory_order_release);
      return make_segment_id(version + 1, entry);
    }
  }
  fail(ErrorCode::kIo, "rank ", rank_, " has ", kSegments,
       " shared buffers already; each sharded model needs a few: destroy those that are not used");
}

void Group::withdraw_segment(std::uint32_t id) noexcept {
  block(rank_).segments[entry_of(id)].version.fetch_add(1, std::memory_order_release);
}

Address Group::segment_address(std::size_t rank, std::uint32_t id) const {
  const SegmentEntry& entry = block(rank).segments[entry_of(id)];
  FSDP_CHECK(make_segment_id(entry.version.load(std::memory_order_acquire), entry_of(id)) == id,
             ErrorCode::kPeerFailed, "rank ", rank,
             " has freed shared memory that it offers to read");
  return {.process = block(rank).process.load(std::memory_order_relaxed),
          .descriptor = entry.descriptor.load(std::memory_order_relaxed)};
}

}  // namespace fsdp::shm
