// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo_exchange.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>

#include "comm/broken_pipe.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {

/// How long a rank that lost a connection waits for whoever knows the cause to publish it.
constexpr Milliseconds kPatienceForCause{300};

/// How long those who have given up as well have to answer.
constexpr Milliseconds kPatienceForAnswers{700};

// Tags: payloads have the highest bit, questions the second, headers are numbered below.
constexpr int kPayloadBit = 1 << 30;
constexpr int kQuestionTag = 1 << 29;
constexpr int kSequenceBits = 8;
constexpr int kHashBits = 22;

int header_tag(std::uint64_t sequence) {
  return static_cast<int>(sequence & static_cast<std::uint64_t>(kQuestionTag - 1));
}

/// The low bits of the sequence number keep collectives in flight apart, the hash those that ranks
/// run by mistake.
int payload_tag(const Fingerprint& fingerprint) {
  const std::uint64_t sequence = fingerprint.sequence & ((1U << kSequenceBits) - 1);
  const std::uint64_t hash = detail::hash(fingerprint) & ((1U << kHashBits) - 1);
  return kPayloadBit | static_cast<int>((sequence << kHashBits) | hash);
}

at::Tensor view_bytes(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)},
                       at::TensorOptions(at::kByte));
}

[[noreturn]] void fail_to_post(int peer, const std::exception& error) {
  fail(ErrorCode::kPeerFailed, "lost rank ", peer, " before this collective (", cause_of(error),
       ")");
}

}  // namespace

std::string cause_of(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  text = text.substr(0, text.find(". This is typically"));
  const auto source = text.find("] ");
  return text.rfind("[/", 0) == 0 && source != std::string::npos ? text.substr(source + 2) : text;
}

C10dWork GlooExchange::post_send(const void* data, std::size_t bytes, int peer, int tag) {
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->send(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(peer, error);
  }
}

C10dWork GlooExchange::post_receive(void* data, std::size_t bytes, int peer, int tag) {
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->recv(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(peer, error);
  }
}

std::unique_ptr<Flight> GlooExchange::start(const Fingerprint& fingerprint) {
  std::unique_ptr<Flight> flight;
  if (idle_flights_.empty()) {
    flight = std::make_unique<Flight>();
    const auto ranks = static_cast<std::size_t>(size());
    flight->headers.resize(ranks);
    for (auto* works : {&flight->header_sends, &flight->header_receives, &flight->payload_sends,
                        &flight->payload_receives}) {
      works->resize(ranks);
    }
  } else {
    flight = std::move(idle_flights_.back());
    idle_flights_.pop_back();
  }
  flight->mine = fingerprint;
  const int tag = header_tag(fingerprint.sequence);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      const auto p = static_cast<std::size_t>(peer);
      flight->header_receives[p] =
          post_receive(&flight->headers[p], sizeof(Fingerprint), peer, tag);
      flight->header_sends[p] = post_send(&flight->mine, sizeof(Fingerprint), peer, tag);
    }
  }
  return flight;
}

void GlooExchange::send(Flight& flight, int peer, const void* data, std::size_t bytes) {
  if (bytes != 0) {
    flight.payload_sends[static_cast<std::size_t>(peer)] =
        post_send(data, bytes, peer, payload_tag(flight.mine));
  }
}

void GlooExchange::receive(Flight& flight, int peer, void* data, std::size_t bytes) {
  if (bytes != 0) {
    flight.payload_receives[static_cast<std::size_t>(peer)] =
        post_receive(data, bytes, peer, payload_tag(flight.mine));
  }
}

void GlooExchange::recycle(std::unique_ptr<Flight> flight) {
  for (auto* works : {&flight->header_sends, &flight->header_receives, &flight->payload_sends,
                      &flight->payload_receives}) {
    std::fill(works->begin(), works->end(), C10dWork());
  }
  if (flight->staging.defined()) {
    idle_staging_.push_back(std::move(flight->staging));
    flight->staging = at::Tensor();
  }
  idle_flights_.push_back(std::move(flight));
}

void GlooExchange::fail_group(const Fingerprint& mine, Symptom symptom, const std::string& own) {
  const bool is_first = !std::exchange(broken_, true);
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
  } else if (first.rfind(who, 0) != 0 && !first.empty()) {
    text = here + " cannot complete; first failure: " + first;
  }
  fail(symptom == Symptom::kTimeout ? ErrorCode::kTimeout : ErrorCode::kPeerFailed, text);
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

std::int64_t GlooExchange::reserve_staging(std::int64_t bytes, int in_flight) {
  std::sort(idle_staging_.begin(), idle_staging_.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return a.numel() > b.numel(); });
  for (int i = 0; i < in_flight && bytes > 0; ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (index == idle_staging_.size()) {
      idle_staging_.emplace_back();
    }
    if (!idle_staging_[index].defined() || idle_staging_[index].numel() < bytes) {
      idle_staging_[index] = at::Tensor();
      idle_staging_[index] = at::empty({bytes}, at::TensorOptions(at::kByte));
    }
  }
  std::int64_t total = 0;
  for (const at::Tensor& staging : idle_staging_) {
    total += staging.numel();
  }
  return total;
}

at::Tensor GlooExchange::take_staging(std::int64_t bytes) {
  auto best = idle_staging_.end();
  for (auto it = idle_staging_.begin(); it != idle_staging_.end(); ++it) {
    if (it->numel() >= bytes && (best == idle_staging_.end() || it->numel() < best->numel())) {
      best = it;
    }
  }
  if (best == idle_staging_.end()) {
    // Too small buffers make room for one that fits.
    if (!idle_staging_.empty()) {
      idle_staging_.pop_back();
    }
    return at::empty({bytes}, at::TensorOptions(at::kByte));
  }
  at::Tensor staging = std::move(*best);
  idle_staging_.erase(best);
  return staging;
}

}  // namespace fsdp::comm::detail
