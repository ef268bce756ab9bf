// SPDX-License-Identifier: Apache-2.0
/// What lies in the segment where the ranks of a job meet: a block for each rank, and behind the
/// blocks a staging area for each. Plain data and lock-free atomics only; zero bytes are its
/// initial state.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/futex.hpp"
#include "shm/phase.hpp"
#include "shm/process.hpp"

namespace fsdp::shm {

/// Collectives of one rank that can be under way.
constexpr std::size_t kRing = 64;
/// Sources up to this size travel in the slot: nobody has to wait until they are read.
constexpr std::size_t kInlineBytes = 3072;
/// A rank's staging, in two halves: what sources in private memory pass through.
constexpr std::size_t kStagingBytes = std::size_t{512} * 1024;
/// Segments of one rank that peers may read in place.
constexpr std::size_t kSegments = 64;
constexpr std::size_t kFailureWords = 128;
constexpr std::size_t kFingerprintBytes = 168;

using FingerprintBytes = std::array<std::byte, kFingerprintBytes>;

/// Where a source lies.
struct Source {
  enum Kind : std::int32_t { kNone, kInline, kInPlace, kStaged };
  Kind kind = kNone;
  std::int32_t owner = -1;    ///< kInPlace: whose segment
  std::uint32_t segment = 0;  ///< kInPlace: its id, see SegmentEntry
  std::uint64_t offset = 0;   ///< kInPlace
};

/// See NOTE [life of an exchange in shared memory].
struct Slot {
  alignas(64) std::atomic<std::uint64_t> state;
  /// Pieces that the owner has put into its staging, and pieces of its peers that it has read.
  std::atomic<std::uint32_t> staged;
  std::atomic<std::uint32_t> consumed;
  alignas(64) FingerprintBytes fingerprint;
  Source source;
  alignas(64) std::byte inline_data[kInlineBytes];
};

/// A segment's entry in its owner's directory. `version` is odd while the entry is valid and grows
/// with every change. A segment's id is made of both, so that it is never used again.
struct SegmentEntry {
  std::atomic<std::uint32_t> version;
  std::atomic<std::int32_t> descriptor;
};

constexpr int kEntryBits = 8;
static_assert(kSegments <= (1U << kEntryBits));
constexpr std::uint32_t make_segment_id(std::uint32_t version, std::uint32_t entry) {
  return (version << kEntryBits) | entry;
}
constexpr std::uint32_t entry_of(std::uint32_t id) { return id & ((1U << kEntryBits) - 1); }

enum class Presence : std::uint32_t { kAbsent = 0, kJoined = 1, kLeft = 2 };

struct RankBlock {
  Bell bell;
  alignas(64) std::atomic<Presence> presence;
  std::atomic<std::int32_t> process;
  /// recover(): the generation that this rank waits to enter, and the last one it has asked for.
  std::atomic<std::uint64_t> here;
  std::atomic<std::uint64_t> came;
  /// The ticket that this rank waits in or has given up in, else 0; for messages.
  std::atomic<Ticket> waiting;
  CoreMask cores;
  /// Text of this rank's failure, written before the first failure names this rank.
  std::array<std::atomic<std::uint64_t>, kFailureWords> failure;
  std::array<SegmentEntry, kSegments> segments;
  std::array<Slot, kRing> slots;
};

struct ControlHeader {
  std::uint32_t ranks = 0;
  alignas(64) std::atomic<std::uint64_t> generation;
  /// (generation + 1) << 16 | rank + 1 of the first to fail in that generation.
  alignas(64) std::atomic<std::uint64_t> first_failure;
};

/// Finds the parts of a control block at `base`.
class ControlBlock {
 public:
  ControlBlock(std::byte* base, std::size_t ranks) : base_(base), ranks_(ranks) {}

  static constexpr std::size_t bytes(std::size_t ranks) {
    return kBlocksAt + ranks * (sizeof(RankBlock) + kStagingBytes);
  }
  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(base_); }
  RankBlock& rank(std::size_t rank) const {
    return reinterpret_cast<RankBlock*>(base_ + kBlocksAt)[rank];
  }
  std::byte* staging(std::size_t rank) const {
    return base_ + kBlocksAt + ranks_ * sizeof(RankBlock) + rank * kStagingBytes;
  }

 private:
  static constexpr std::size_t kBlocksAt = 4096;
  static_assert(sizeof(ControlHeader) <= kBlocksAt);

  std::byte* base_;
  std::size_t ranks_;
};

}  // namespace fsdp::shm
