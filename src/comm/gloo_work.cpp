// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo_work.hpp"

#include <algorithm>
#include <exception>

#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {
constexpr Milliseconds kPatienceForDropped{2000};

/// Peers may still send into buffers that the caller is about to free. Gloo closes all connections
/// when any wait exceeds its limit.
void close_connections(const Flight& flight) noexcept {
  for (const auto* works : {&flight.header_receives, &flight.payload_receives,
                            &flight.payload_sends, &flight.header_sends}) {
    for (const C10dWork& work : *works) {
      try {
        if (work) {
          work->wait(Milliseconds(1));
        }
      } catch (...) {
        return;
      }
    }
  }
}
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
  WaitRecord record(exchange_->log(), flight->mine);
  complete(*flight);
  finish(*flight);
  record.complete();
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
  FailureBoard& board = exchange_->board();
  board.watch(works[peer]);
  std::string cause;
  try {
    const bool is_done = works[peer]->wait(remaining(deadline_));
    board.watch({});
    if (is_done) {
      return;
    }
  } catch (const std::exception& error) {
    board.watch({});
    cause = first_line(error.what());
  }
  report(flight, peer, what, cause);
}

void GlooWork::report(Flight& flight, std::size_t peer, const char* what,
                      const std::string& cause) {
  const std::string dropped =
      dropped_ ? "; this rank had dropped the collective without waiting for it" : "";
  const std::string waited_for = what + std::to_string(peer);
  if (cause.empty()) {
    close_connections(flight);
    exchange_->fail_group(flight.mine, Symptom::kTold, "was told that a peer failed" + dropped);
  }
  if (Clock::now() + Milliseconds(2) < deadline_) {
    close_connections(flight);
    exchange_->fail_group(flight.mine, Symptom::kLostPeer,
                          "lost rank " + std::to_string(peer) + " while it waited for " +
                              waited_for + " (" + cause + ")" + dropped);
  }
  exchange_->fail_group(flight.mine, Symptom::kTimeout,
                        "waited " + to_text(exchange_->timeout()) + " for " + waited_for +
                            "; missing: " + list_missing(flight, peer) +
                            ". Every rank must make this call; FSDP_TIMEOUT sets the limit" +
                            dropped);
}

/// The ranks whose header has not come by the time that `peer` is given up.
std::string GlooWork::list_missing(Flight& flight, std::size_t peer) const {
  std::string missing = std::to_string(peer);
  for (std::size_t other = peer + 1; other < ranks(); ++other) {
    const C10dWork& header = flight.header_receives[other];
    try {
      if (!header || header->wait(Milliseconds(1))) {
        continue;
      }
    } catch (const std::exception&) {
    }
    missing += ", " + std::to_string(other);
  }
  return missing;
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
