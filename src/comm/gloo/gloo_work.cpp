// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_work.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {
constexpr Milliseconds kPatienceForDropped{2000};
constexpr Milliseconds kPatienceForWatchdog{1000};

/// Whether all that moves between this rank and a member has moved, waited for or not.
bool is_done_with(const Flight& flight, std::size_t member) noexcept {
  for (const auto* works : {&flight.header_receives, &flight.header_sends, &flight.payload_receives,
                            &flight.payload_sends}) {
    const C10dWork& work = (*works)[member];
    try {
      if (work && !work->wait(Milliseconds(1))) {
        return false;
      }
    } catch (...) {
      return false;
    }
  }
  return true;
}

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

GlooWork::GlooWork(std::shared_ptr<GlooExchange> exchange, std::unique_ptr<Flight> flight,
                   at::Tensor dst, at::Tensor src, Steps steps)
    : exchange_(std::move(exchange)),
      dst_(std::move(dst)),
      src_(std::move(src)),
      steps_(std::move(steps)),
      flight_(std::move(flight)) {
  if (steps_.inside) {
    inside_ = exchange_->progress().start([this] { run_inside(); });
  }
  exchange_->open().push_back(flight_.get());
}

GlooWork::~GlooWork() {
  std::erase(exchange_->open(), flight_.get());
  if (is_waited_) {
    return;
  }
  if (!exchange_->is_broken()) {
    drop();
  } else if (inside_) {
    exchange_->progress().cancel(inside_);
  }
}

void GlooWork::wait() {
  FSDP_ASSERT(!is_waited_, "a collective was waited for twice");
  const DispatchGuard guard;
  is_waited_ = true;
  std::erase(exchange_->open(), flight_.get());
  const std::shared_ptr<CollectiveLog> log = flight_->seat->log;
  WaitRecord record(*log, flight_->mine);
  deadline_ = Clock::now() + exchange_->timeout();
  await_inside();
  std::unique_ptr<Flight> flight = std::move(flight_);
  complete(*flight);
  if (steps_.finish) {
    steps_.finish(*flight);
  }
  record.complete();
  exchange_->recycle(std::move(flight));
}

/// On the progress thread. Ranks that are in different collectives learn it in complete(), and none
/// of them comes to its steps.
void GlooWork::run_inside() {
  is_inside_ = true;
  await_headers(*flight_);
  if (!find_mismatch(flight_->headers)) {
    steps_.inside(*this);
  }
  is_inside_ = false;
}

void GlooWork::await_inside() {
  if (inside_) {
    exchange_->progress().await(inside_, deadline_);
  }
}

void GlooWork::await_data(int member) {
  await(*flight_, flight_->payload_receives, static_cast<std::size_t>(member), "the data of rank ");
}

void GlooWork::send(int member, const at::Tensor& data) {
  try {
    exchange_->send(*flight_, member, data.const_data_ptr(), data.nbytes());
  } catch (const Error& error) {
    exchange_->fail_group(flight_->mine, Symptom::kLostPeer, error.text());
  }
}

void GlooWork::await_headers(Flight& flight) {
  for (std::size_t member = 0; member < flight.headers.size(); ++member) {
    await(flight, flight.header_receives, member, "rank ");
  }
  flight.headers[static_cast<std::size_t>(flight.seat->index)] = flight.mine;
}

void GlooWork::complete(Flight& flight) {
  await_headers(flight);
  const bool is_mismatched = find_mismatch(flight.headers).has_value();
  const bool have_all_sent = !is_mismatched || !steps_.sends_inside;
  for (std::size_t member = 0; member < flight.headers.size(); ++member) {
    await(flight, flight.header_sends, member, "its header to reach rank ");
    if (have_all_sent && same_collective(flight.mine, flight.headers[member])) {
      await(flight, flight.payload_receives, member, "the data of rank ");
      await(flight, flight.payload_sends, member, "its data to reach rank ");
    }
  }
  if (is_mismatched) {
    fail_mismatched(flight);
  }
}

/// Every rank holds all headers, so all name the same two sides. Ranks may wait in another order
/// than the one they started in: where they parted first is in the oldest that differs, and nobody
/// has completed that one.
void GlooWork::fail_mismatched(const Flight& flight) {
  std::optional<std::string> mismatch = find_mismatch(flight.headers);
  if (exchange_->has_progress()) {
    exchange_->progress().await_all(deadline_);  // no flight may be in two threads' hands
  }
  for (Flight* older : exchange_->open()) {
    if (older->mine.group != flight.mine.group || older->mine.sequence > flight.mine.sequence) {
      continue;
    }
    await_headers(*older);
    if (auto earlier = find_mismatch(older->headers)) {
      mismatch = std::move(earlier);
      break;
    }
  }
  fail(ErrorCode::kMismatch, *mismatch);
}

void GlooWork::await(Flight& flight, std::vector<C10dWork>& works, std::size_t member,
                     const char* what) {
  if (!works[member]) {
    return;
  }
  const auto& deadline = is_inside_ ? exchange_->progress().deadline() : deadline_;
  Watchdog::Wait guarded(exchange_->watchdog(), works[member], deadline);
  std::string cause;
  try {
    // The watchdog ends the wait; Gloo's limit is there if it cannot.
    const bool is_done = works[member]->wait(remaining(deadline) + kPatienceForWatchdog);
    if (guarded.end() == Watchdog::Verdict::kNothing || is_done) {
      works[member] = {};
      return;
    }
  } catch (const std::exception& error) {
    cause = cause_of(error);
  }
  const int peer = flight.seat->ranks[member];
  const std::string waited_for = what + std::to_string(peer);
  switch (guarded.end()) {
    case Watchdog::Verdict::kTimeout: give_up(flight, waited_for);
    case Watchdog::Verdict::kTold:
      close_connections(flight);
      exchange_->fail_group(flight.mine, Symptom::kTold, "was told that a peer failed");
    case Watchdog::Verdict::kInterrupted:
      close_connections(flight);
      exchange_->fail_group(flight.mine, Symptom::kTold, "was interrupted by its user");
    case Watchdog::Verdict::kNothing: break;
  }
  close_connections(flight);
  exchange_->fail_group(flight.mine, Symptom::kLostPeer,
                        exchange_->describe_loss(peer, "while it waited for " + waited_for + " (" +
                                                           cause + ")" + note()));
}

/// The time is up: says who is missing, before the connections are closed.
void GlooWork::give_up(Flight& flight, const std::string& waited_for) {
  const std::string silence = describe_silence(flight);
  close_connections(flight);
  exchange_->fail_group(flight.mine, Symptom::kTimeout,
                        "waited " + to_text(exchange_->timeout()) + " for " + waited_for + silence +
                            "; FSDP_TIMEOUT sets the limit" + note());
}

/// Who has given up at the same time, in this collective, an earlier one or one of another group,
/// is as stuck as this rank is; who is silent and owes something is missing. Where no member of the
/// group is, the one to blame keeps another group waiting.
std::string GlooWork::describe_silence(const Flight& flight) const {
  const auto known = exchange_->ask_peers(flight.mine);
  std::string missing;
  std::string silent_elsewhere;
  Fingerprint first = flight.mine;
  for (std::size_t rank = 0; rank < known.size(); ++rank) {
    const auto seat = std::ranges::find(flight.seat->ranks, static_cast<int>(rank));
    if (seat == flight.seat->ranks.end()) {
      if (!known[rank]) {
        base::append_to_list(silent_elsewhere, rank);
      }
      continue;
    }
    const auto member = static_cast<std::size_t>(seat - flight.seat->ranks.begin());
    if (!known[rank] && !is_done_with(flight, member)) {
      base::append_to_list(missing, rank);
    } else if (known[rank] && (known[rank]->group != flight.mine.group ||
                               known[rank]->sequence < first.sequence)) {
      first = *known[rank];
    }
  }
  std::string text;
  if (first.rank != flight.mine.rank) {
    text = ", while rank " + std::to_string(first.rank) + " waits in " + describe(first);
  }
  if (!missing.empty()) {
    return text + "; missing: " + missing + ". Every rank must make this call";
  }
  if (first.group != flight.mine.group && !silent_elsewhere.empty()) {
    return text + "; silent in other groups: " + silent_elsewhere;
  }
  return text + "; no rank is missing: a rank or the link is too slow";
}

std::string GlooWork::note() const {
  return dropped_ ? "; this rank had dropped the collective without waiting for it" : "";
}

void GlooWork::drop() noexcept {
  // The peers are about to move data to and from buffers that the caller is about to free.
  dropped_ = true;
  try {
    deadline_ = Clock::now() + std::min(exchange_->timeout(), kPatienceForDropped);
    await_inside();
    complete(*flight_);
    exchange_->recycle(std::move(flight_));
  } catch (...) {
  }
}

}  // namespace fsdp::comm::detail
