// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_exchange.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>

#include "base/text.hpp"
#include "comm/failure/broken_pipe.hpp"
#include "comm/failure/early_leave.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {

/// How long a rank that lost a connection waits for whoever knows the cause to publish it.
constexpr Milliseconds kPatienceForCause{300};

/// How long those who have given up as well have to answer.
constexpr Milliseconds kPatienceForAnswers{700};

// Tags: payloads have the highest bit, questions the second, headers are numbered below. The
// group's number keeps groups apart that have two ranks in common, the low bits of the sequence
// number collectives in flight, the hash those that ranks run by mistake.
//
//   header   0 0 group(6) sequence(23)
//   payload  1 group(6) sequence(6) hash(18)
constexpr int kPayloadBit = 1 << 30;
constexpr int kQuestionTag = 1 << 29;
constexpr int kGroupBits = 6;
constexpr int kHeaderSequenceBits = 23;
constexpr int kPayloadSequenceBits = 6;
constexpr int kHashBits = 18;
static_assert(GroupNumbers::kNumbers <= 1 << kGroupBits);
static_assert(kGroupBits + kHeaderSequenceBits == 29);
static_assert(kGroupBits + kPayloadSequenceBits + kHashBits == 30);

int low_bits(std::uint64_t value, int bits) {
  return static_cast<int>(value & ((std::uint64_t{1} << bits) - 1));
}

int header_tag(const Fingerprint& fingerprint) {
  return fingerprint.group << kHeaderSequenceBits |
         low_bits(fingerprint.sequence, kHeaderSequenceBits);
}

int payload_tag(const Fingerprint& fingerprint) {
  return kPayloadBit | fingerprint.group << (kPayloadSequenceBits + kHashBits) |
         low_bits(fingerprint.sequence, kPayloadSequenceBits) << kHashBits |
         low_bits(detail::hash(fingerprint), kHashBits);
}

at::Tensor view_bytes(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)},
                       at::TensorOptions(at::kByte));
}

[[noreturn]] void fail_to_post(GlooExchange& exchange, int peer, const std::exception& error) {
  fail(ErrorCode::kPeerFailed,
       exchange.describe_loss(peer, "before this collective (" + cause_of(error) + ")"));
}

}  // namespace

std::string cause_of(const std::exception& error) {
  std::string text = base::first_line(error.what());
  text = text.substr(0, text.find(". This is typically"));
  const auto source = text.find("] ");
  return text.starts_with("[/") && source != std::string::npos ? text.substr(source + 2) : text;
}

C10dWork GlooExchange::post_send(const void* data, std::size_t bytes, int peer, int tag) {
  std::lock_guard lock(post_mutex_);
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->send(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(*this, peer, error);
  }
}

C10dWork GlooExchange::post_receive(void* data, std::size_t bytes, int peer, int tag) {
  std::lock_guard lock(post_mutex_);
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->recv(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(*this, peer, error);
  }
}

std::unique_ptr<Flight> GlooExchange::start(SeatPointer seat, const Fingerprint& fingerprint) {
  std::unique_ptr<Flight> flight;
  if (idle_flights_.empty()) {
    flight = std::make_unique<Flight>();
  } else {
    flight = std::move(idle_flights_.back());
    idle_flights_.pop_back();
  }
  const std::size_t members = seat->ranks.size();
  flight->headers.resize(members);
  for (auto* works : {&flight->header_sends, &flight->header_receives, &flight->payload_sends,
                      &flight->payload_receives}) {
    works->resize(members);
  }
  flight->seat = std::move(seat);
  flight->mine = fingerprint;
  const int tag = header_tag(fingerprint);
  for (std::size_t member = 0; member < members; ++member) {
    const int peer = flight->seat->ranks[member];
    if (peer != rank()) {
      flight->header_receives[member] =
          post_receive(&flight->headers[member], sizeof(Fingerprint), peer, tag);
      flight->header_sends[member] = post_send(&flight->mine, sizeof(Fingerprint), peer, tag);
    }
  }
  return flight;
}

void GlooExchange::send(Flight& flight, int member, const void* data, std::size_t bytes) {
  if (bytes != 0) {
    const auto m = static_cast<std::size_t>(member);
    flight.payload_sends[m] =
        post_send(data, bytes, flight.seat->ranks[m], payload_tag(flight.mine));
  }
}

void GlooExchange::receive(Flight& flight, int member, void* data, std::size_t bytes) {
  if (bytes != 0) {
    const auto m = static_cast<std::size_t>(member);
    flight.payload_receives[m] =
        post_receive(data, bytes, flight.seat->ranks[m], payload_tag(flight.mine));
  }
}

void GlooExchange::recycle(std::unique_ptr<Flight> flight) {
  for (auto* works : {&flight->header_sends, &flight->header_receives, &flight->payload_sends,
                      &flight->payload_receives}) {
    std::fill(works->begin(), works->end(), C10dWork());
  }
  if (flight->staging.defined()) {
    flight->pool->give_back(std::exchange(flight->staging, at::Tensor()));
  }
  flight->pool.reset();
  flight->seat.reset();
  idle_flights_.push_back(std::move(flight));
}

Progress& GlooExchange::progress() {
  if (!progress_) {
    progress_ = std::make_unique<Progress>();
  }
  return *progress_;
}

void GlooExchange::end() {
  broken_ = true;
  if (progress_) {
    progress_->stop();
  }
}

void GlooExchange::fail_group(const Fingerprint& mine, Symptom symptom, const std::string& own) {
  const bool is_first = !broken_.exchange(true);
  const std::string who = "rank " + std::to_string(rank()) + ":";
  const std::string here = describe(mine) + " on rank " + std::to_string(rank());
  std::string text = here + " " + own;
  std::string first;
  if (symptom != Symptom::kTimeout) {
    // A closed connection has a cause elsewhere; whoever knows it gets a moment to publish it.
    first = board_.read(is_first && symptom == Symptom::kLostPeer ? kPatienceForCause
                                                                  : Milliseconds(0));
  }
  if (first.empty()) {
    first = board_.publish(text);
  }
  if (first.empty() && symptom != Symptom::kTimeout) {
    text +=
        ". The job's store, on rank 0 or torchrun's agent, does not answer either: it ended "
        "first";
  } else if (!first.starts_with(who) && !first.empty()) {
    text = here + " cannot complete; first failure: " + first;
  }
  fail(symptom == Symptom::kTimeout ? ErrorCode::kTimeout : ErrorCode::kPeerFailed, text);
}

std::string GlooExchange::first_failure() noexcept {
  if (!board_.has_failure()) {
    board_.look_soon();
    return "";
  }
  return board_.read(Milliseconds(0));
}

std::string GlooExchange::describe_loss(int peer, const std::string& when) {
  const std::string name = "rank " + std::to_string(peer);
  return board_.has_left(peer) ? describe_early_leave(name) : "lost " + name + " " + when;
}

std::vector<std::optional<Fingerprint>> GlooExchange::ask_peers(const Fingerprint& mine) {
  const NoBrokenPipe guard;
  const auto ranks = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  answers_.assign(ranks + 1, mine);
  std::vector<C10dWork> questions(ranks);
  std::vector<C10dWork> answers(ranks);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    try {
      if (peer != me) {
        const auto p = static_cast<int>(peer);
        answers[peer] = post_receive(&answers_[peer], sizeof(Fingerprint), p, kQuestionTag);
        questions[peer] = post_send(&answers_[ranks], sizeof(Fingerprint), p, kQuestionTag);
      }
    } catch (const Error&) {
      answers[peer] = {};  // its connection is closed
    }
  }
  std::vector<std::optional<Fingerprint>> known(ranks);
  known[me] = mine;
  const auto deadline = Clock::now() + kPatienceForAnswers;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    try {
      if (answers[peer] && answers[peer]->wait(remaining(deadline))) {
        known[peer] = answers_[peer];
      }
    } catch (const std::exception&) {
      // The first one to be silent uses up the time; answers that have come by then count.
    }
  }
  return known;
}

}  // namespace fsdp::comm::detail
