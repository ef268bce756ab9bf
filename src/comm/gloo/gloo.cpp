// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/failure/broken_pipe.hpp"
#include "comm/fingerprint.hpp"
#include "comm/gloo/gloo_exchange.hpp"
#include "comm/gloo/gloo_transport.hpp"
#include "comm/gloo/gloo_work.hpp"
#include "comm/group_of_one.hpp"
#include "comm/join/regroup.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/seat.hpp"
#include "comm/shared_file.hpp"
#include "comm/staging_pool.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

// NOTE [direct exchange]
// A collective is a set of point-to-point messages, all posted when it starts and moved by Gloo's
// I/O thread while the caller computes:
//
//   header   the fingerprint, to and from every peer; fixed size, tag from group and sequence
//   payload  all-gather: own slice to every peer, their slices straight into dst
//            reduce-scatter: slice p of src to rank p, own slices of the peers into staging, summed
//            in rank order by wait()
//            broadcast: from the root to every peer
//
// Gloo aborts the process when a message is larger than the buffer posted for it, so a payload's
// tag is derived from a hash of the fingerprint: the payloads of different collectives never meet.
// They stay posted for ever, the headers tell both sides, and wait() throws. Before it does, it
// finishes the payloads of those peers that are in the same collective, because a message that
// stops halfway would block its connection.
//
// A message whose receiver has not posted yet waits at the sender, so headers and payloads cost one
// round trip together.

namespace {

using detail::Fingerprint;
using detail::Flight;
using detail::GlooExchange;
using detail::GlooWork;
using detail::Milliseconds;

/// The sum of a reduce-scatter: slices of the peers lie in the flight's staging, in rank order.
void sum_slices(const Flight& flight, const at::Tensor& dst, const at::Tensor& src,
                const Finish& finish) {
  const std::size_t ranks = flight.headers.size();
  const std::size_t bytes = src.nbytes() / ranks;
  const auto rank = static_cast<std::size_t>(flight.seat->index);
  std::vector<const void*> slices(ranks);
  std::size_t staged = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    slices[r] = r == rank ? static_cast<const std::byte*>(src.const_data_ptr()) + rank * bytes
                          : static_cast<const std::byte*>(flight.staging.const_data_ptr()) +
                                staged++ * bytes;
  }
  detail::reduce_slices(dst.mutable_data_ptr(), dst.scalar_type(), slices, dst.numel(),
                        src.scalar_type(), finish);
}

}  // namespace

namespace detail {

GlooTransport::GlooTransport(c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                             const Traits& traits)
    : HostTransport(traits),
      seat_(whole_seat(traits.name, options.rank, options.size)),
      store_(std::move(store)),
      options_(options) {
  connect(0);
}

GlooTransport::GlooTransport(std::shared_ptr<GlooTransport> job, SeatPointer seat,
                             const Traits& traits)
    : HostTransport(traits),
      job_(std::move(job)),
      seat_(std::move(seat)),
      sequence_generation_(job_->generation_) {}

GlooTransport::~GlooTransport() {
  // The peers will only see a closed connection.
  if (job_ || exchange_->is_broken()) {
    return;
  }
  if (std::uncaught_exceptions() > 0) {
    exchange_->board().publish("an exception ended it; its own output says which");
  } else {
    exchange_->board().say_goodbye();
  }
}

std::int64_t GlooTransport::reserve_staging(std::int64_t max_src_bytes, int in_flight) {
  const DispatchGuard guard;
  return staging_->reserve(max_src_bytes / size() * (size() - 1), in_flight);
}

at::Tensor GlooTransport::shared_memory(std::int64_t bytes, const Label& label) {
  return map_shared_file(*this, bytes, label);
}

void GlooTransport::set_timeout(std::chrono::milliseconds timeout) {
  if (job_) {
    return job_->set_timeout(timeout);
  }
  options_.timeout = std::max(timeout, Milliseconds(1));
  exchange_->set_timeout(options_.timeout);
}

void GlooTransport::publish_failure(const std::string& text) noexcept {
  exchange().board().publish(text);
}

void GlooTransport::connect(std::uint64_t generation) {
  const std::string prefix = "fsdp/generation/" + std::to_string(generation);
  auto backend = connect_gloo(c10::make_intrusive<c10d::PrefixStore>(prefix, store_), options_);
  exchange_ =
      std::make_shared<GlooExchange>(store_, std::move(backend), options_.timeout, generation);
  generation_ = generation;
  // The store's host may end at once; until all are connected, the others still read addresses.
  barrier({.name = "connect"});
}

void GlooTransport::recover() {
  if (job_) {
    return job_->recover();
  }
  const DispatchGuard guard;
  const auto deadline = Clock::now() + options_.timeout;
  // Whoever still waits in a collective of the old generation must come here.
  exchange_->board().publish("it called recover()", deadline);
  exchange_->end();
  meet_again(exchange_->board(), rank(), size(), generation_, options_.timeout, deadline);
  connect(generation_ + 1);
}

void GlooTransport::announce(const Announcement& announcement) {
  seat_->announced->add(describe(announcement), generation());
}

SeatPointer GlooTransport::take_seat(const std::vector<int>& ranks, const std::string& label) {
  return agree_on_split(*this, traits().name, *seat_, job().numbers_, ranks, label,
                        exchange().size());
}

std::shared_ptr<GlooTransport> GlooTransport::shared_job() {
  return job_ ? job_ : std::static_pointer_cast<GlooTransport>(shared_from_this());
}

std::shared_ptr<HostTransport> GlooTransport::make_part(const std::vector<int>& ranks,
                                                        const std::string& label) {
  auto seat = take_seat(ranks, label);
  if (seat->size() == 1) {
    return make_group_of_one(link());
  }
  return std::make_shared<GlooTransport>(shared_job(), std::move(seat));
}

std::unique_ptr<Flight> GlooTransport::start(const Description& description,
                                             const std::function<void(Flight&)>& post) {
  if (sequence_generation_ != job().generation_) {
    sequence_generation_ = job().generation_;
    sequence_ = 0;
    staging_->restore();
  }
  const Fingerprint fingerprint =
      make_fingerprint(description, ++sequence_, *seat_, sequence_generation_);
  seat_->log->start(fingerprint);
  if (exchange().is_broken()) {
    exchange().fail_group(fingerprint, Symptom::kTold, "came after the group had failed");
  }
  // A send writes at once, in this thread.
  const NoBrokenPipe no_pipe;
  std::string cause;
  try {
    std::unique_ptr<Flight> flight = exchange().start(seat_, fingerprint);
    post(*flight);
    return flight;
  } catch (const Error& error) {
    cause = error.text();
  }
  exchange().fail_group(fingerprint, Symptom::kLostPeer, cause);
}

std::unique_ptr<Work> GlooTransport::all_gather(at::Tensor dst, at::Tensor src,
                                                const Label& label) {
  const DispatchGuard guard;
  const Description description = check_all_gather(*this, dst, src, label);
  const std::size_t bytes = src.nbytes();
  auto flight = start(description, [&](Flight& posted) {
    if (bytes == 0) {
      return;
    }
    auto* slices = static_cast<std::byte*>(dst.mutable_data_ptr());
    const void* source = src.const_data_ptr();
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* slice = slices + static_cast<std::size_t>(peer) * bytes;
      if (peer != rank()) {
        exchange().receive(posted, peer, slice, bytes);
        exchange().send(posted, peer, source, bytes);
      } else if (slice != source) {
        std::memcpy(slice, source, bytes);
      }
    }
  });
  return std::make_unique<GlooWork>(job().exchange_, std::move(flight), std::move(dst),
                                    std::move(src));
}

std::unique_ptr<Work> GlooTransport::reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                                    const Label& label) {
  const DispatchGuard guard;
  const Description description = check_reduce_scatter(*this, dst, src, finish, label);
  const auto bytes = static_cast<std::size_t>(description.bytes);
  auto flight = start(description, [&](Flight& posted) {
    if (bytes == 0) {
      return;
    }
    posted.pool = staging_;
    posted.staging = staging_->take(static_cast<std::int64_t>(bytes) * (size() - 1));
    auto* staging = static_cast<std::byte*>(posted.staging.mutable_data_ptr());
    const auto* slices = static_cast<const std::byte*>(src.const_data_ptr());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        exchange().receive(posted, peer, staging, bytes);
        exchange().send(posted, peer, slices + static_cast<std::size_t>(peer) * bytes, bytes);
        staging += bytes;
      }
    }
  });
  detail::Steps steps;
  if (bytes != 0) {
    steps.finish = [dst, src, finish](const Flight& moved) { sum_slices(moved, dst, src, finish); };
  }
  return std::make_unique<GlooWork>(job().exchange_, std::move(flight), std::move(dst),
                                    std::move(src), std::move(steps));
}

std::unique_ptr<Work> GlooTransport::broadcast(at::Tensor buffer, int root, const Label& label) {
  const DispatchGuard guard;
  const Description description = check_broadcast(*this, buffer, root, label);
  auto flight = start(description, [&](Flight& posted) {
    if (rank() != root) {
      exchange().receive(posted, root, buffer.mutable_data_ptr(), buffer.nbytes());
      return;
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != root) {
        exchange().send(posted, peer, buffer.const_data_ptr(), buffer.nbytes());
      }
    }
  });
  return std::make_unique<GlooWork>(job().exchange_, std::move(flight), buffer, buffer);
}

std::unique_ptr<Work> GlooTransport::publish(const Label& label) {
  const DispatchGuard guard;
  auto flight = start(describe_agree(label), [](Flight&) {});
  return std::make_unique<GlooWork>(job().exchange_, std::move(flight), at::Tensor(), at::Tensor());
}

}  // namespace detail

std::shared_ptr<detail::HostTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store,
                                                           const GlooOptions& options) {
  const detail::DispatchGuard guard;
  return std::make_shared<detail::GlooTransport>(std::move(store), options);
}

}  // namespace fsdp::comm
