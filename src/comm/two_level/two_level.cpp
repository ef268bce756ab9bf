// SPDX-License-Identifier: Apache-2.0
#include "comm/two_level/two_level.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/gloo/gloo_transport.hpp"
#include "comm/gloo/gloo_work.hpp"
#include "comm/group_of_one.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/shm/shm.hpp"
#include "comm/two_level/host_group.hpp"
#include "comm/two_level/two_level_steps.hpp"
#include "comm/wire.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {
namespace detail {
namespace {

/// What fails between hosts, for those who wait inside one. *Thread safety*: internally locked.
class Elsewhere {
 public:
  void watch(const std::shared_ptr<GlooExchange>& exchange) {
    std::lock_guard lock(mutex_);
    exchange_ = exchange;
  }
  std::string failure() {
    std::shared_ptr<GlooExchange> exchange;
    {
      std::lock_guard lock(mutex_);
      exchange = exchange_.lock();
    }
    return exchange ? exchange->first_failure() : "";
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<GlooExchange> exchange_;
};

class TwoLevelTransport final : public GlooTransport {
 public:
  TwoLevelTransport(const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options,
                    int locals)
      : GlooTransport(store, options, two_level_traits()),
        place_{.hosts = options.size / locals,
               .locals = locals,
               .host = options.rank / locals,
               .local = options.rank % locals},
        elsewhere_(std::make_shared<Elsewhere>()) {
    elsewhere_->watch(shared_exchange());
    const auto prefix = "fsdp/host/" + std::to_string(place_.host);
    host_ = make_shm_transport({.store = c10::make_intrusive<c10d::PrefixStore>(prefix, store),
                                .rank = place_.local,
                                .size = locals,
                                .timeout = options.timeout,
                                .first_rank = place_.host * locals,
                                .job_size = options.size},
                               [elsewhere = elsewhere_] { return elsewhere->failure(); });
    inside_ = split_for_background(*host_, "inside a host");
  }
  TwoLevelTransport(std::shared_ptr<GlooTransport> job, SeatPointer seat, HostPosition place,
                    std::shared_ptr<HostTransport> host, Host inside)
      : GlooTransport(std::move(job), std::move(seat), two_level_traits()),
        place_(place),
        host_(std::move(host)),
        inside_(std::move(inside)) {}

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override;
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override;

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override {
    const DispatchGuard guard;
    return staging()->reserve(max_src_bytes / size() * (2 * place_.hosts - 1), in_flight) +
           inside_->reserve_staging(max_src_bytes, in_flight);
  }

  at::Tensor buffer(std::int64_t bytes) override { return host_->buffer(bytes); }

  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override {
    GlooTransport::set_timeout(timeout);
    host_->set_timeout(timeout);
  }

  void recover() override {
    GlooTransport::recover();
    if (elsewhere_) {  // of the whole job
      elsewhere_->watch(shared_exchange());
      host_->recover();
    }
  }

 private:
  /// What a reduce-scatter of slices like `dst` stages, in `flight`, with receives posted.
  Partials post_partials(Flight& flight, const at::Tensor& dst, at::ScalarType dtype);

  const HostPosition place_;
  std::shared_ptr<Elsewhere> elsewhere_;  ///< of the whole job
  // The ranks of this host, for two threads.
  std::shared_ptr<HostTransport> host_;  ///< the rank's own
  Host inside_;                          ///< the progress thread's
};

std::unique_ptr<Work> TwoLevelTransport::all_gather(at::Tensor dst, at::Tensor src,
                                                    const Label& label) {
  const DispatchGuard guard;
  const Description description = check_all_gather(*this, dst, src, label);
  const at::Tensor flat = dst.detach().view({-1});
  const at::Tensor own = slice_of(flat, rank(), place_);
  auto flight = start(description, [&](Flight& posted) {
    for (int host = 0; host < place_.hosts && description.bytes != 0; ++host) {
      const int peer = place_.counterpart(host);
      if (host != place_.host) {
        const at::Tensor slice = slice_of(flat, peer, place_);
        exchange().receive(posted, peer, slice.mutable_data_ptr(), slice.nbytes());
        exchange().send(posted, peer, src.const_data_ptr(), src.nbytes());
      } else if (own.const_data_ptr() != src.const_data_ptr()) {
        std::memcpy(own.mutable_data_ptr(), src.const_data_ptr(), src.nbytes());
      }
    }
  });
  return std::make_unique<GlooWork>(
      shared_exchange(), std::move(flight), std::move(dst), std::move(src),
      description.bytes == 0 ? Steps{} : gather_steps(inside_, place_, flat, label));
}

Partials TwoLevelTransport::post_partials(Flight& flight, const at::Tensor& dst,
                                          at::ScalarType dtype) {
  const auto bytes = dst.numel() * static_cast<std::int64_t>(at::elementSize(dtype));
  flight.pool = staging();
  flight.staging = staging()->take(bytes * (2 * place_.hosts - 1));
  auto* free = static_cast<std::byte*>(flight.staging.mutable_data_ptr());
  const auto next = [&] {
    return at::from_blob(std::exchange(free, free + bytes), {dst.numel()}, dtype);
  };
  Partials partials;
  for (int host = 0; host < place_.hosts; ++host) {
    partials.own.push_back(next());
    partials.added.push_back(host == place_.host ? partials.own.back() : next());
    if (host != place_.host) {
      const at::Tensor& added = partials.added.back();
      exchange().receive(flight, place_.counterpart(host), added.mutable_data_ptr(),
                         added.nbytes());
    }
  }
  return partials;
}

std::unique_ptr<Work> TwoLevelTransport::reduce_scatter(at::Tensor dst, at::Tensor src,
                                                        Finish finish, const Label& label) {
  const DispatchGuard guard;
  const Description description = check_reduce_scatter(*this, dst, src, finish, label);
  const at::ScalarType wire = wire_of(Summing::kInParts, dst.scalar_type(), src.scalar_type());
  Partials partials;
  auto flight =
      start(description, [&](Flight& posted) { partials = post_partials(posted, dst, wire); });
  Steps steps;
  if (dst.numel() != 0) {
    steps = reduce_steps(inside_, place_, dst, src, partials, finish, label);
  }
  return std::make_unique<GlooWork>(shared_exchange(), std::move(flight), std::move(dst),
                                    std::move(src), std::move(steps));
}

std::unique_ptr<Work> TwoLevelTransport::broadcast(at::Tensor buffer, int root,
                                                   const Label& label) {
  const DispatchGuard guard;
  const Description description = check_broadcast(*this, buffer, root, label);
  auto flight = start(description, [&](Flight& posted) {
    if (place_.local != root % place_.locals || description.bytes == 0) {
      return;
    }
    if (rank() != root) {
      exchange().receive(posted, root, buffer.mutable_data_ptr(), buffer.nbytes());
      return;
    }
    for (int host = 0; host < place_.hosts; ++host) {
      if (host != place_.host) {
        exchange().send(posted, place_.counterpart(host), buffer.const_data_ptr(), buffer.nbytes());
      }
    }
  });
  return std::make_unique<GlooWork>(
      shared_exchange(), std::move(flight), buffer, buffer,
      description.bytes == 0 ? Steps{} : broadcast_steps(inside_, place_, buffer, root, label));
}

/// The group's ranks on this host are a group of this host, in any case. What the whole group is
/// depends on how its ranks lie on the hosts.
std::shared_ptr<HostTransport> TwoLevelTransport::make_part(const std::vector<int>& ranks,
                                                            const std::string& label) {
  const DispatchGuard guard;
  auto seat = take_seat(ranks, label);
  std::vector<int> locals;
  std::vector<int> by_host(static_cast<std::size_t>(place_.hosts));
  for (const int rank : ranks) {
    const int host = rank / place_.locals;
    ++by_host[static_cast<std::size_t>(host)];
    if (host == place_.host) {
      locals.push_back(rank % place_.locals);
    }
  }
  auto host = host_->make_part(locals, label);
  Host inside;
  exchange().progress().run([&] { inside = inside_->make_part(locals, label); },
                            Clock::now() + exchange().timeout());
  // Of all hosts: nobody goes on, to recover() say, while others are still here.
  barrier({.name = "split: " + label});
  if (ranks.size() == 1) {
    return make_group_of_one(link());
  }
  if (locals.size() == ranks.size()) {
    return make_host_group(shared_job(), std::move(host));
  }
  const auto used = static_cast<int>(std::ranges::count_if(by_host, [](int n) { return n > 0; }));
  const bool is_even = static_cast<std::size_t>(used) * locals.size() == ranks.size() &&
                       std::ranges::all_of(by_host, [&](int n) {
                         return n == 0 || n == static_cast<int>(locals.size());
                       });
  if (!is_even || locals.size() == 1) {
    return std::make_shared<GlooTransport>(shared_job(), std::move(seat));
  }
  const auto each = static_cast<int>(locals.size());
  const HostPosition place{
      .hosts = used, .locals = each, .host = seat->index / each, .local = seat->index % each};
  return std::make_shared<TwoLevelTransport>(shared_job(), std::move(seat), place, std::move(host),
                                             std::move(inside));
}

}  // namespace
}  // namespace detail

int ranks_per_host(const std::vector<std::string>& hosts) {
  const auto other =
      std::ranges::find_if_not(hosts, [&](const auto& host) { return host == hosts[0]; });
  const auto locals = static_cast<std::size_t>(other - hosts.begin());
  if (locals < 2 || locals == hosts.size() || hosts.size() % locals != 0) {
    return 0;
  }
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t first = rank / locals * locals;
    const bool is_new =
        std::find(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(first), hosts[rank]) ==
        hosts.begin() + static_cast<std::ptrdiff_t>(first);
    if (hosts[rank] != hosts[first] || !is_new) {
      return 0;
    }
  }
  return static_cast<int>(locals);
}

std::shared_ptr<detail::HostTransport> make_two_level_transport(
    const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options, int ranks_per_host) {
  const detail::DispatchGuard guard;
  auto transport = std::make_shared<detail::TwoLevelTransport>(store, options, ranks_per_host);
  transport->barrier({.name = "connect hosts"});
  return transport;
}

}  // namespace fsdp::comm
