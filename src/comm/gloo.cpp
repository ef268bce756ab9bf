// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/fingerprint.hpp"
#include "comm/first_failure.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/shared_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

// NOTE [direct exchange]
// A collective is a set of point-to-point messages, all posted when it starts and moved by Gloo's
// I/O thread while the caller computes:
//
//   header   the fingerprint, to and from every peer; fixed size, tag from the sequence number
//   payload  all-gather: own slice to every peer, their slices straight into dst
//            reduce-scatter: slice p of src to rank p, own slices of the peers into staging, summed
//            in rank order by wait()
//            broadcast: from the root to every peer
//
// Gloo aborts the process when a message is larger than the buffer posted for it, so a payload's tag
// is derived from a hash of the fingerprint: the payloads of different collectives never meet. They
// stay posted for ever, the headers tell both sides, and wait() throws. Before it does, it finishes
// the payloads of those peers that are in the same collective, because a message that stops halfway
// would block its connection.
//
// A message whose receiver has not posted yet waits at the sender, so headers and payloads cost one
// round trip together.

namespace {

using detail::Clock;
using detail::Fingerprint;
using detail::Milliseconds;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

constexpr int kPayloadBit = 1 << 30;
constexpr int kSequenceBits = 8;
constexpr int kHashBits = 22;
constexpr Milliseconds kPatienceForCause{300};
constexpr Milliseconds kPatienceForDropped{2000};

int header_tag(std::uint64_t sequence) {
  return static_cast<int>(sequence & static_cast<std::uint64_t>(kPayloadBit - 1));
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

/// The first line: what follows is LibTorch's stack.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void fail_to_post(int peer, const std::exception& error) {
  fail(ErrorCode::kPeerFailed, "lost rank ", peer, " before this collective (",
       first_line(error.what()), ")");
}

bool is_loopback(const std::string& host) {
  return host.rfind("127.", 0) == 0 || host == "localhost" || host == "::1";
}

/// What a collective in flight holds besides the caller's tensors. Recycled, so that steady state
/// allocates nothing of size.
struct Flight {
  Fingerprint mine;
  std::vector<Fingerprint> headers;  // by rank
  std::vector<C10dWork> header_sends, header_receives;    // by rank, null for oneself
  std::vector<C10dWork> payload_sends, payload_receives;  // by rank, null where nothing moves
  at::Tensor staging;
};

/// Connections, recycled memory and the failure board; outlives every Work.
class Exchange {
 public:
  Exchange(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> backend,
           Milliseconds timeout)
      : store_(store),
        backend_(std::move(backend)),
        board_(std::move(store), backend_->getRank()),
        timeout_(timeout) {}

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }
  detail::FailureBoard& board() { return board_; }
  c10d::Store& store() { return *store_; }

  std::unique_ptr<Flight> start(const Fingerprint& fingerprint);
  void send(Flight& flight, int peer, const void* data, std::size_t bytes);
  void receive(Flight& flight, int peer, void* data, std::size_t bytes);
  void recycle(std::unique_ptr<Flight> flight);

  /// Gloo has closed connections; nothing can be started any more.
  bool is_broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  std::int64_t reserve_staging(std::int64_t bytes, int in_flight);
  at::Tensor take_staging(std::int64_t bytes);

 private:
  C10dWork post_send(const void* data, std::size_t bytes, int peer, int tag);
  C10dWork post_receive(void* data, std::size_t bytes, int peer, int tag);

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  detail::FailureBoard board_;
  Milliseconds timeout_;
  bool broken_ = false;
  std::vector<std::unique_ptr<Flight>> idle_flights_;
  std::vector<at::Tensor> idle_staging_;
  std::vector<at::Tensor> argument_ = std::vector<at::Tensor>(1);
};

C10dWork Exchange::post_send(const void* data, std::size_t bytes, int peer, int tag) {
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->send(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(peer, error);
  }
}

C10dWork Exchange::post_receive(void* data, std::size_t bytes, int peer, int tag) {
  argument_[0] = view_bytes(data, bytes);
  try {
    return backend_->recv(argument_, peer, tag);
  } catch (const std::exception& error) {
    fail_to_post(peer, error);
  }
}

std::unique_ptr<Flight> Exchange::start(const Fingerprint& fingerprint) {
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

void Exchange::send(Flight& flight, int peer, const void* data, std::size_t bytes) {
  if (bytes != 0) {
    flight.payload_sends[static_cast<std::size_t>(peer)] =
        post_send(data, bytes, peer, payload_tag(flight.mine));
  }
}

void Exchange::receive(Flight& flight, int peer, void* data, std::size_t bytes) {
  if (bytes != 0) {
    flight.payload_receives[static_cast<std::size_t>(peer)] =
        post_receive(data, bytes, peer, payload_tag(flight.mine));
  }
}

void Exchange::recycle(std::unique_ptr<Flight> flight) {
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

std::int64_t Exchange::reserve_staging(std::int64_t bytes, int in_flight) {
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

at::Tensor Exchange::take_staging(std::int64_t bytes) {
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

/// A collective in flight: first the headers, then the payloads.
class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<Exchange> exchange, std::unique_ptr<Flight> flight, at::Tensor dst,
           at::Tensor src)
      : exchange_(std::move(exchange)),
        flight_(std::move(flight)),
        dst_(std::move(dst)),
        src_(std::move(src)) {}

  ~GlooWork() override {
    if (flight_ && !exchange_->is_broken()) {
      drop();
    }
  }

  void wait() override {
    FSDP_ASSERT(flight_ != nullptr, "a collective was waited for twice");
    const detail::DispatchGuard guard;
    deadline_ = Clock::now() + exchange_->timeout();
    std::unique_ptr<Flight> flight = std::move(flight_);
    complete(*flight);
    finish(*flight);
    exchange_->recycle(std::move(flight));
  }

 protected:
  /// Runs once all payloads are there.
  virtual void finish(const Flight&) {}

  const at::Tensor& dst() const { return dst_; }
  const at::Tensor& src() const { return src_; }
  std::size_t ranks() const { return static_cast<std::size_t>(exchange_->size()); }

 private:
  void complete(Flight& flight);
  void drop() noexcept;
  void await(Flight& flight, std::vector<C10dWork>& works, std::size_t peer, const char* what);
  [[noreturn]] void report(Flight& flight, std::size_t peer, const char* what,
                           const std::string& cause);

  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<Flight> flight_;
  at::Tensor dst_;
  at::Tensor src_;
  Clock::time_point deadline_;
  bool dropped_ = false;
};

void GlooWork::complete(Flight& flight) {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    await(flight, flight.header_receives, peer, "rank ");
  }
  flight.headers[static_cast<std::size_t>(flight.mine.rank)] = flight.mine;
  const auto is_stranger = [&](const Fingerprint& header) {
    return !detail::same_collective(flight.mine, header);
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
        std::find_if(flight.headers.begin(), flight.headers.end(), [&](const Fingerprint& header) {
          return !detail::same_collective(left, header);
        });
    fail(ErrorCode::kMismatch, detail::describe_mismatch(left, *right));
  }
}

void GlooWork::await(Flight& flight, std::vector<C10dWork>& works, std::size_t peer,
                     const char* what) {
  if (!works[peer]) {
    return;
  }
  try {
    if (works[peer]->wait(detail::remaining(deadline_))) {
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
  std::string text = detail::describe(flight.mine) + " on rank " +
                     std::to_string(flight.mine.rank);
  if (timed_out) {
    std::string missing = std::to_string(peer);
    for (std::size_t other = peer + 1; other < ranks(); ++other) {
      try {
        if (!flight.header_receives[other] || flight.header_receives[other]->wait(Milliseconds(1))) {
          continue;
        }
      } catch (const std::exception&) {
      }
      missing += ", " + std::to_string(other);
    }
    text += " waited " + detail::to_text(exchange_->timeout()) + " for " + what +
            std::to_string(peer) + "; missing: " + missing +
            ". Every rank must make this call; FSDP_TIMEOUT sets the limit";
  } else {
    text += " lost rank " + std::to_string(peer) + " while it waited for " + what +
            std::to_string(peer) + " (" + first_line(cause) + ")";
  }
  if (dropped_) {
    text += "; this rank had dropped the collective without waiting for it";
  }
  // A closed connection has a cause elsewhere; whoever knows it gets a moment to publish it.
  detail::FailureBoard& board = exchange_->board();
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

class ReduceScatterWork : public GlooWork {
 public:
  ReduceScatterWork(std::shared_ptr<Exchange> exchange, std::unique_ptr<Flight> flight,
                    at::Tensor dst, at::Tensor src, Reduction reduction)
      : GlooWork(std::move(exchange), std::move(flight), std::move(dst), std::move(src)),
        reduction_(reduction) {}

 private:
  void finish(const Flight& flight) override {
    const std::size_t bytes = dst().nbytes();
    if (bytes == 0) {
      return;
    }
    const auto rank = static_cast<std::size_t>(flight.mine.rank);
    std::vector<const void*> slices(ranks());
    std::size_t staged = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      slices[r] = r == rank
                      ? static_cast<const std::byte*>(src().const_data_ptr()) + rank * bytes
                      : static_cast<const std::byte*>(flight.staging.const_data_ptr()) +
                            staged++ * bytes;
    }
    detail::reduce_slices(dst().mutable_data_ptr(), slices, dst().numel(), dst().scalar_type(),
                          reduction_);
  }

  Reduction reduction_;
};

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  ~GlooCommunicator() override {
    // The peers will only see a closed connection.
    if (std::uncaught_exceptions() > 0 && !exchange_->is_broken()) {
      exchange_->board().publish("an exception ended it; its own output says which");
    }
  }

  int rank() const override { return exchange_->rank(); }
  int size() const override { return exchange_->size(); }
  std::string transport() const override { return "gloo"; }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                       const Label& label) override;
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override;
  std::unique_ptr<Work> agree(const Label& label) override;

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override {
    const detail::DispatchGuard guard;
    return exchange_->reserve_staging(max_src_bytes / size() * (size() - 1), in_flight);
  }

  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override {
    return detail::map_shared_file(*this, bytes, label);
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    exchange_->set_timeout(std::max(timeout, Milliseconds(1)));
  }

 private:
  /// Starts a collective and lets `post` add its payloads; a connection that is already closed
  /// becomes an Error here.
  template <class Post>
  std::unique_ptr<Flight> start(const detail::Description& description, Post post);

  std::shared_ptr<Exchange> exchange_;
  std::uint64_t sequence_ = 0;
};

template <class Post>
std::unique_ptr<Flight> GlooCommunicator::start(const detail::Description& description, Post post) {
  const Fingerprint fingerprint = detail::make_fingerprint(description, ++sequence_, rank());
  std::string cause = "the group has failed before";
  if (!exchange_->is_broken()) {
    try {
      std::unique_ptr<Flight> flight = exchange_->start(fingerprint);
      post(*flight);
      return flight;
    } catch (const Error& error) {
      exchange_->set_broken();
      cause = error.text();
    }
  }
  const std::string text =
      detail::describe(fingerprint) + " on rank " + std::to_string(rank()) + ": " + cause;
  std::string first = exchange_->board().read(kPatienceForCause);
  if (first.empty()) {
    first = exchange_->board().publish(text);
  }
  fail(ErrorCode::kPeerFailed, text, first.empty() ? "" : "; first failure: ", first);
}

std::unique_ptr<Work> GlooCommunicator::all_gather(at::Tensor dst, at::Tensor src,
                                                   const Label& label) {
  const detail::DispatchGuard guard;
  const detail::Description description = detail::check_all_gather(dst, src, size(), label);
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
        exchange_->receive(posted, peer, slice, bytes);
        exchange_->send(posted, peer, source, bytes);
      } else if (slice != source) {
        std::memcpy(slice, source, bytes);
      }
    }
  });
  return std::make_unique<GlooWork>(exchange_, std::move(flight), std::move(dst), std::move(src));
}

std::unique_ptr<Work> GlooCommunicator::reduce_scatter(at::Tensor dst, at::Tensor src,
                                                       Reduction reduction, const Label& label) {
  const detail::DispatchGuard guard;
  const detail::Description description =
      detail::check_reduce_scatter(dst, src, size(), reduction, label);
  const std::size_t bytes = dst.nbytes();
  auto flight = start(description, [&](Flight& posted) {
    if (bytes == 0) {
      return;
    }
    posted.staging = exchange_->take_staging(static_cast<std::int64_t>(bytes) * (size() - 1));
    auto* staging = static_cast<std::byte*>(posted.staging.mutable_data_ptr());
    const auto* slices = static_cast<const std::byte*>(src.const_data_ptr());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        exchange_->receive(posted, peer, staging, bytes);
        exchange_->send(posted, peer, slices + static_cast<std::size_t>(peer) * bytes, bytes);
        staging += bytes;
      }
    }
  });
  return std::make_unique<ReduceScatterWork>(exchange_, std::move(flight), std::move(dst),
                                             std::move(src), reduction);
}

std::unique_ptr<Work> GlooCommunicator::broadcast(at::Tensor buffer, int root,
                                                  const Label& label) {
  const detail::DispatchGuard guard;
  const detail::Description description = detail::check_broadcast(buffer, root, size(), label);
  auto flight = start(description, [&](Flight& posted) {
    if (rank() != root) {
      exchange_->receive(posted, root, buffer.mutable_data_ptr(), buffer.nbytes());
      return;
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != root) {
        exchange_->send(posted, peer, buffer.const_data_ptr(), buffer.nbytes());
      }
    }
  });
  return std::make_unique<GlooWork>(exchange_, std::move(flight), buffer, buffer);
}

std::unique_ptr<Work> GlooCommunicator::agree(const Label& label) {
  const detail::DispatchGuard guard;
  auto flight = start(detail::describe_agree(label), [](Flight&) {});
  return std::make_unique<GlooWork>(exchange_, std::move(flight), at::Tensor(), at::Tensor());
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    gloo->devices = {c10d::ProcessGroupGloo::createDeviceForInterface(interface)};
  } else if (is_loopback(options.master_addr)) {
    gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  } else {
    gloo->devices = {c10d::ProcessGroupGloo::createDefaultDevice()};
  }
  try {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo);
  } catch (const std::exception& error) {
    fail(ErrorCode::kPeerFailed, "rank ", options.rank, " of ", options.size,
         " could not connect to its peers: ", error.what(),
         ". GLOO_SOCKET_IFNAME names the network interface to use");
  }
}

std::shared_ptr<Communicator> make_gloo_communicator(c10::intrusive_ptr<c10d::Store> store,
                                                     const GlooOptions& options) {
  const detail::DispatchGuard guard;
  auto backend = connect_gloo(store, options);
  auto exchange = std::make_shared<Exchange>(std::move(store), std::move(backend), options.timeout);
  auto communicator = std::make_shared<GlooCommunicator>(std::move(exchange));
  // The store's host may end at once; until all are connected, the others still read addresses.
  communicator->agree({.name = "init"})->wait();
  return communicator;
}

}  // namespace fsdp::comm
