// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/failure/early_leave.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// A rank that drops a collective while an exception unwinds tells the cause a moment later.
constexpr Milliseconds kPatienceForReason{1000};
constexpr Milliseconds kPatienceForReaders{5000};
constexpr std::size_t kPieceAlignment = 64;

static_assert(sizeof(Fingerprint) == sizeof(shm::FingerprintBytes));

shm::FingerprintBytes to_bytes(const Fingerprint& fingerprint) {
  shm::FingerprintBytes bytes;
  std::memcpy(bytes.data(), &fingerprint, sizeof(fingerprint));
  return bytes;
}

Fingerprint from_bytes(const shm::FingerprintBytes& bytes) {
  Fingerprint fingerprint;
  std::memcpy(&fingerprint, bytes.data(), sizeof(fingerprint));
  return fingerprint;
}

}  // namespace

std::string ShmSide::name_failure(const shm::Failure& first) {
  // What came from another host names its rank itself.
  return first.text.starts_with("rank ") ? first.text
                                         : "rank " + std::to_string(first.rank) + ": " + first.text;
}

void ShmSide::fail_group(const Fingerprint& mine, ErrorCode code, const std::string& own) {
  const std::string here = describe(mine) + " on rank " + std::to_string(mine.rank);
  const std::string text = here + " " + own;
  group->publish_failure(text);
  const auto first = group->first_failure();
  if (!first || (first->rank == mine.rank && text.starts_with(first->text))) {
    fail(code, text);
  }
  fail(code, here, " cannot complete; first failure: ", name_failure(*first));
}

ShmExchange::ShmExchange(std::shared_ptr<ShmSide> side, const Description& description,
                         const ShmSource& source)
    : side_(std::move(side)), group_(*side_->group), own_(source) {
  ticket_ = group_.next_ticket();
  mine_ = make_fingerprint(description, shm::sequence_of(ticket_), *side_->seat,
                           shm::generation_of(ticket_));
  side_->seat->log->start(mine_);
  came_after_failure_ = group_.first_failure().has_value();
  if (group_.is_between_generations()) {
    side_->fail_group(mine_, ErrorCode::kPeerFailed, "came after the group had failed");
  }
  deadline_ = Clock::now() + side_->timeout->load();
  check(group_.await_slot(ticket_, deadline_), "to end an earlier call");
  post();
  side_->open.push_back(this);
}

void ShmExchange::post() {
  if (own_.bytes == 0) {
    posted_ = {};
  } else if (own_.bytes <= shm::kInlineBytes) {
    posted_.kind = shm::Source::kInline;
  } else if (const auto place = side_->memory->locate(own_.data, own_.bytes)) {
    posted_ = *place;
  } else {
    posted_.kind = shm::Source::kStaged;
  }
  group_.post(ticket_, to_bytes(mine_), posted_, own_.data, own_.bytes);
}

ShmExchange::~ShmExchange() {
  std::erase(side_->open, this);
  if (!is_complete_) {
    group_.drop(ticket_, Clock::now() + std::min(side_->timeout->load(), kPatienceForReaders));
  }
}

void ShmExchange::wait(const Reader& read) {
  FSDP_ASSERT(!is_waited_, "a collective was waited for twice");
  is_waited_ = true;
  std::erase(side_->open, this);
  WaitRecord record(*side_->seat->log, mine_);
  deadline_ = Clock::now() + side_->timeout->load();
  // A failure of before is one also where all have started; a later one may come from a rank that
  // is through with this exchange.
  if (came_after_failure_ && shm::generation_of(ticket_) == group_.generation()) {
    check({.kind = End::kFailed}, "");
  }
  check(group_.await_posted(ticket_, deadline_), "to make this call");
  compare();
  read_all(read);
  group_.finish(ticket_);
  // The caller may write its source again, and the next exchange this rank's staging.
  if (posted_.kind == shm::Source::kInPlace || posted_.kind == shm::Source::kStaged) {
    check(group_.await_done(ticket_, deadline_), "to read this rank's data");
  }
  is_complete_ = true;
  record.complete();
}

/// What differs in an exchange that all ranks have posted, nothing when they agree.
std::optional<std::string> ShmExchange::find_mismatch() const {
  const Fingerprint first = from_bytes(group_.fingerprint(ticket_, 0));
  for (std::size_t rank = 1; rank < static_cast<std::size_t>(group_.size()); ++rank) {
    const Fingerprint other = from_bytes(group_.fingerprint(ticket_, rank));
    if (!same_collective(first, other)) {
      return describe_mismatch(first, other);
    }
  }
  return std::nullopt;
}

/// Every rank compares all, so all name the same two sides, and all are still in step. Ranks may
/// wait in another order than the one they posted in: where they parted first is in the oldest that
/// differs, and nobody has completed that one. It was posted by all before this one was.
void ShmExchange::compare() {
  std::optional<std::string> mismatch = find_mismatch();
  if (!mismatch) {
    return;
  }
  for (const ShmExchange* other : side_->open) {
    if (shm::generation_of(other->ticket_) != shm::generation_of(ticket_) ||
        other->ticket_ >= ticket_) {
      continue;
    }
    if (auto earlier = other->find_mismatch()) {
      mismatch = std::move(earlier);
      break;
    }
  }
  group_.finish(ticket_);
  is_complete_ = true;
  fail(ErrorCode::kMismatch, *mismatch);
}

void ShmExchange::read_all(const Reader& read) {
  const auto ranks = static_cast<std::size_t>(group_.size());
  bases_.assign(ranks, nullptr);
  slices_.assign(ranks, nullptr);
  bool is_staged = false;
  bool is_read_elsewhere = false;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    is_staged = is_staged || group_.source(ticket_, rank).kind == shm::Source::kStaged;
    is_read_elsewhere =
        is_read_elsewhere || group_.source(ticket_, rank).kind == shm::Source::kInPlace;
  }
  if (is_staged || is_read_elsewhere) {
    check(group_.begin_reading(ticket_), "to go on");
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const shm::Source& source = group_.source(ticket_, rank);
    if (static_cast<int>(rank) == group_.rank()) {
      bases_[rank] = static_cast<const std::byte*>(own_.data);
    } else if (source.kind == shm::Source::kInline) {
      bases_[rank] = group_.inline_data(ticket_, rank);
    } else if (source.kind == shm::Source::kInPlace) {
      bases_[rank] = open_source(source);
    }
  }
  const std::size_t all = own_.read_bytes;
  const std::size_t most = is_staged ? piece_bytes() : all;
  std::uint32_t piece = 0;
  for (std::size_t offset = 0; offset < all; offset += most, ++piece) {
    const std::size_t bytes = std::min(most, all - offset);
    if (is_staged) {
      stage(piece, offset, bytes);
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      slices_[rank] = slice_of(rank, piece, offset);
    }
    read(offset, bytes, slices_);
    if (is_staged) {
      group_.show_consumed(ticket_, piece + 1);
    }
  }
}

/// A peer that was killed after it had posted has taken its memory with it, unless this rank has
/// opened it before.
const std::byte* ShmExchange::open_source(const shm::Source& source) {
  try {
    return side_->memory->find(source);
  } catch (const Error& error) {
    const std::string owner = group_.describe_process(source.owner + group_.first_rank());
    side_->fail_group(mine_, error.code(),
                      "cannot read the data of " + owner + ": " + error.text());
  }
}

std::size_t ShmExchange::piece_bytes() const {
  const std::size_t half = shm::kStagingBytes / 2;
  // Sliced, whoever reads: the pieces of all slices lie side by side.
  return own_.is_sliced
             ? half / static_cast<std::size_t>(group_.size()) / kPieceAlignment * kPieceAlignment
             : half;
}

/// Puts this rank's piece where the peers find it, and waits until theirs are there.
void ShmExchange::stage(std::uint32_t piece, std::size_t offset, std::size_t bytes) {
  if (posted_.kind == shm::Source::kStaged) {
    if (piece >= 2) {
      check(group_.await_consumed(ticket_, piece - 1, deadline_), "to read this rank's data");
    }
    std::byte* half = group_.own_half(piece);
    const auto* data = static_cast<const std::byte*>(own_.data);
    const auto me = static_cast<std::size_t>(group_.rank());
    const std::size_t copies = own_.is_sliced ? static_cast<std::size_t>(group_.size()) : 1;
    for (std::size_t copy = 0; copy < copies; ++copy) {
      if (!own_.is_sliced || copy != me) {
        std::memcpy(half + copy * piece_bytes(), data + copy * own_.read_bytes + offset, bytes);
      }
    }
    group_.show_staged(ticket_, piece + 1);
  }
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group_.size()); ++rank) {
    if (static_cast<int>(rank) != group_.rank() &&
        group_.source(ticket_, rank).kind == shm::Source::kStaged) {
      check(group_.await_staged(ticket_, rank, piece + 1, deadline_), "to give its data");
    }
  }
}

const std::byte* ShmExchange::slice_of(std::size_t rank, std::uint32_t piece,
                                       std::size_t offset) const {
  const auto me = static_cast<std::size_t>(group_.rank());
  if (rank != me && group_.source(ticket_, rank).kind == shm::Source::kStaged) {
    return group_.half_of(rank, piece) + (own_.is_sliced ? me * piece_bytes() : 0);
  }
  const std::size_t begin = own_.is_sliced ? me * own_.read_bytes : 0;
  return bases_[rank] == nullptr ? nullptr : bases_[rank] + begin + offset;
}

void ShmExchange::check(const End& end, const char* what) {
  switch (end.kind) {
    case End::kReady: return;
    case End::kDropped: fail_dropped(end.rank);
    case End::kRecovered:
      fail(ErrorCode::kPeerFailed, describe(mine_), " on rank ", mine_.rank,
           ": the group has recovered meanwhile");
    case End::kFailed:
      side_->fail_group(mine_, ErrorCode::kPeerFailed, "was told that a peer failed");
    case End::kLeft:
      side_->fail_group(mine_, ErrorCode::kPeerFailed,
                        describe_early_leave(group_.describe_process(end.rank)) +
                            "; this rank needed it " + what);
    case End::kLost:
      side_->fail_group(mine_, ErrorCode::kPeerFailed,
                        "lost " + group_.describe_process(end.rank) +
                            ": its process has ended, killed or by exit(), its own output may say "
                            "why; this rank needed it " +
                            what);
    case End::kInterrupted:
      side_->fail_group(mine_, ErrorCode::kPeerFailed, "was interrupted by its user");
    case End::kTimeout: break;
  }
  const std::string missing = group_.list_missing(ticket_);
  // Where all of this group wait, the one to blame keeps another group waiting.
  const std::string idle = missing.empty() ? group_.list_idle() : "";
  const std::string whom =
      missing.empty() ? std::to_string(end.rank) : missing.substr(0, missing.find(','));
  side_->fail_group(
      mine_, ErrorCode::kTimeout,
      "waited " + to_text(side_->timeout->load()) + " for rank " + whom + " " + what +
          (!missing.empty() ? "; missing: " + missing + ". Every rank must make this call"
           : !idle.empty()  ? "; no rank of this group is missing, but in no collective: " + idle
                            : "; no rank is missing: a rank is too slow") +
          "; FSDP_TIMEOUT sets the limit");
}

void ShmExchange::fail_dropped(int rank) {
  const auto patience = Clock::now() + kPatienceForReason;
  while (!group_.first_failure() && Clock::now() < std::min(patience, deadline_)) {
    std::this_thread::sleep_for(Milliseconds(5));
  }
  side_->fail_group(
      mine_, ErrorCode::kPeerFailed,
      "cannot complete: rank " + std::to_string(rank) + " dropped it before it was complete");
}

}  // namespace fsdp::comm::detail
