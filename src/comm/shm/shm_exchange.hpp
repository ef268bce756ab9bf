// SPDX-License-Identifier: Apache-2.0
/// One collective of one rank over shared memory, from posting to the last peer's "done".
///
/// NOTE [who copies what in shared memory]
/// A rank posts where its source lies and, in wait(), reads the peers' sources by itself:
///
///   inline     up to a few KiB travel in the slot; nobody waits until they are read
///   in place   the source lies in a segment (shared_memory(), buffer()): peers read it there, and
///              wait() ends when all have
///   staged     any other memory: while the ranks are in wait(), pieces go through two halves of
///              the owner's staging; all ranks go from piece to piece together
///
/// So nothing moves while nobody waits, and a copy is made only where memory is private. If one
/// source is staged all ranks work in pieces, which costs nothing: a piece stays in the cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/seat.hpp"
#include "comm/shm/shm_memory.hpp"
#include "comm/timeout.hpp"
#include "fsdp/base/error.hpp"
#include "shm/group.hpp"

namespace fsdp::comm::detail {

class ShmExchange;

/// What the collectives of one rank in one group share.
struct ShmSide {
  std::shared_ptr<shm::Group> group;
  std::shared_ptr<ShmMemory> memory;  ///< of the whole job
  SeatPointer seat;
  std::shared_ptr<std::atomic<Milliseconds>> timeout;  ///< of the whole job
  /// Exchanges that were posted and are not waited for yet, oldest first. They keep the list.
  std::vector<ShmExchange*> open = {};

  /// With its rank in front.
  static std::string name_failure(const shm::Failure& first);
  /// @throws Error kPeerFailed with the first failure of the group, or this one's
  [[noreturn]] void fail_group(const Fingerprint& mine, ErrorCode code, const std::string& own);
};

/// What a rank gives.
struct ShmSource {
  const void* data = nullptr;
  std::size_t bytes = 0;
  /// Bytes that each rank reads of it.
  std::size_t read_bytes = 0;
  /// Whether each peer reads its own slice (reduce-scatter) or all of it.
  bool is_sliced = false;
};

class ShmExchange {
 public:
  /// `slices[r]` points at what this rank reads of rank r's source (null without one), `bytes` of
  /// it, `offset` bytes behind its begin.
  using Reader = std::function<void(std::size_t offset, std::size_t bytes,
                                    std::span<const std::byte* const> slices)>;

  ShmExchange(std::shared_ptr<ShmSide> side, const Description& description,
              const ShmSource& source);
  ~ShmExchange();
  ShmExchange(const ShmExchange&) = delete;
  ShmExchange& operator=(const ShmExchange&) = delete;

  /// Blocks until this rank has read, and has been read where its source is not left behind.
  /// @throws Error as Work::wait()
  void wait(const Reader& read);

  const Fingerprint& mine() const { return mine_; }

 private:
  using End = shm::WaitEnd;

  void post();
  void compare();
  std::optional<std::string> find_mismatch() const;
  void read_all(const Reader& read);
  const std::byte* open_source(const shm::Source& source);
  void stage(std::uint32_t piece, std::size_t offset, std::size_t bytes);
  const std::byte* slice_of(std::size_t rank, std::uint32_t piece, std::size_t offset) const;
  std::size_t piece_bytes() const;
  void check(const End& end, const char* what);
  [[noreturn]] void fail_dropped(int rank);

  std::shared_ptr<ShmSide> side_;
  shm::Group& group_;
  ShmSource own_;
  Fingerprint mine_;
  shm::Ticket ticket_ = 0;
  shm::Source posted_;
  Clock::time_point deadline_;
  std::vector<const std::byte*> bases_;   ///< of sources in place and inline
  std::vector<const std::byte*> slices_;  ///< what the reader gets
  bool came_after_failure_ = false;
  bool is_waited_ = false;
  bool is_complete_ = false;
};

}  // namespace fsdp::comm::detail
