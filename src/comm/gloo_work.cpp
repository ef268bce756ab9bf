// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo_work.hpp"

#include <algorithm>
#include <exception>

#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {
constexpr Milliseconds kPatienceForDropped{2000};
}  // namespace

GlooWork::~GlooWork() {
  if (flight_ && !exchange_->is_broken()) {
    drop();
  }
}

void GlooWork::wait() {
  FSDP_ASSERT(flight_ != nullptr, "a collective was waited for twice");
  const DispatchGuard guard;
  deadline_ = Clock::now() + exchange_->timeout();
  std::unique_ptr<Flight> flight = std::move(flight_);
  complete(*flight);
  finish(*flight);
  exchange_->recycle(std::move(flight));
}

void GlooWork::complete(Flight& flight) {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    await(flight, flight.header_receives, peer, "rank ");
  }
  flight.headers[static_cast<std::size_t>(flight.mine.rank)] = flight.mine;
  const auto is_stranger = [&](const Fingerprint& header) {
    return !same_collective(flight.mine, header);
  };
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    await(flight, flight.header_sends, peer, "its header to reach rank ");
    if (!is_stranger(flight.headers[peer])) {
      await(flight, flight.payload_receives, peer, "the data of rank ");
      await(flight, flight.payload_sends, peer, "its data to reach rank ");
    }
  }
  if (std::any_of(flight.headers.begin(), flight.headers.end(), is_stranger)) {
    // Every rank holds all headers, so all name the same two sides.
    const Fingerprint& left = flight.headers[0];
    const auto right =
        std::find_if(flight.headers.begin(), flight.headers.end(),
                     [&](const Fingerprint& header) { return !same_collective(left, header); });
    fail(ErrorCode::kMismatch, describe_mismatch(left, *right));
  }
}

void GlooWork::await(Flight& flight, std::vector<C10dWork>& works, std::size_t peer,
                     const char* what) {
  if (!works[peer]) {
    return;
  }
  try {
    if (works[peer]->wait(remaining(deadline_))) {
      return;
    }
  } catch (const std::exception& error) {
    report(flight, peer, what, error.what());
  }
  report(flight, peer, what, "the transfer was aborted");
}

void GlooWork::report(Flight& flight, std::size_t peer, const char* what,
                      const std::string& cause) {
  const bool timed_out = Clock::now() + Milliseconds(2) >= deadline_;
  const bool is_first = !exchange_->is_broken();
  exchange_->set_broken();
  std::string text = describe(flight.mine) + " on rank " + std::to_string(flight.mine.rank);
  if (timed_out) {
    std::string missing = std::to_string(peer);
    for (std::size_t other = peer + 1; other < ranks(); ++other) {
      try {
        if (!flight.header_receives[other] ||
            flight.header_receives[other]->wait(Milliseconds(1))) {
          continue;
        }
      } catch (const std::exception&) {
      }
      missing += ", " + std::to_string(other);
    }
    text += " waited " + to_text(exchange_->timeout()) + " for " + what + std::to_string(peer) +
            "; missing: " + missing +
            ". Every rank must make this call; FSDP_TIMEOUT sets the limit";
  } else {
    text += " lost rank " + std::to_string(peer) + " while it waited for " + what +
            std::to_string(peer) + " (" + first_line(cause) + ")";
  }
  if (dropped_) {
    text += "; this rank had dropped the collective without waiting for it";
  }
  // A closed connection has a cause elsewhere; whoever knows it gets a moment to publish it.
  FailureBoard& board = exchange_->board();
  std::string first = timed_out || !is_first ? "" : board.read(kPatienceForCause);
  if (first.empty()) {
    first = board.publish(text);
  }
  if (!first.empty() && first.rfind("rank " + std::to_string(flight.mine.rank) + ":", 0) != 0) {
    text += "; first failure: " + first;
  }
  fail(timed_out ? ErrorCode::kTimeout : ErrorCode::kPeerFailed, text);
}

void GlooWork::drop() noexcept {
  // The peers are about to move data to and from buffers that the caller is about to free.
  dropped_ = true;
  try {
    deadline_ = Clock::now() + std::min(exchange_->timeout(), kPatienceForDropped);
    complete(*flight_);
    exchange_->recycle(std::move(flight_));
  } catch (...) {
  }
}

}  // namespace fsdp::comm::detail
