// SPDX-License-Identifier: Apache-2.0
#include "comm/two_level.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/broken_pipe.hpp"
#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/gloo_communicator.hpp"
#include "comm/gloo_work.hpp"
#include "comm/group_of_one.hpp"
#include "comm/host_group.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/shm.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

// NOTE [two levels]
// Rank = host * L + l: L ranks a host, H hosts. The ranks with the same l on all hosts are
// counterparts. Every collective begins with the headers of all ranks, as over Gloo alone: who
// meets whom, who is missing and who failed first are told in the same way. Then
//
//   all-gather      each rank sends its slice to its counterparts, straight into their dst; then
//   the
//                   ranks of a host read each other's: for each host h, an all-gather over shared
//                   memory of the block of L slices that belongs to h
//   reduce-scatter  for each host h, a reduce-scatter over shared memory of the block of L slices
//                   that belongs to h: rank l gets what this host adds to the slice of h's l-th
//                   rank, and sends it there while the next block is summed; then each rank sums
//                   what the hosts added
//   broadcast       the root sends to its counterparts, each of which broadcasts on its host
//
// So each byte crosses from a host to another once, where Gloo alone sends a slice to each of the L
// ranks there, and each host's gradients leave it as one sum.
//
// Sums run in rank order on each host, then over the hosts in order, and are divided once: the same
// bits in every run, not those of Gloo alone. Sums of bfloat16 and float16 stay float32 until the
// last rounding, also between hosts.

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
    if (!exchange) {
      return "";
    }
    FailureBoard& board = exchange->board();
    if (!board.has_failure()) {
      board.look_soon();
      return "";
    }
    return board.read(Milliseconds(0));
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<GlooExchange> exchange_;
};

/// Sends from inside a wait. A connection that is closed ends the group.
void send_to(GlooExchange& exchange, Flight& flight, int member, const at::Tensor& data) {
  const NoBrokenPipe no_pipe;
  try {
    exchange.send(flight, member, data.const_data_ptr(), data.nbytes());
  } catch (const Error& error) {
    exchange.fail_group(flight.mine, Symptom::kLostPeer, error.text());
  }
}

/// A step inside a host: what fails there ends the whole group.
void on_host(GlooExchange& exchange, const Flight& flight, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    exchange.fail_group(
        flight.mine, error.code() == ErrorCode::kTimeout ? Symptom::kTimeout : Symptom::kLostPeer,
        "failed inside its host: " + error.text());
  }
}

/// Where a rank stands: hosts of equally many ranks, all the members of one group.
struct Place {
  int hosts = 1;
  int locals = 1;
  int host = 0;
  int local = 0;
  int counterpart(int on_host) const { return on_host * locals + local; }
};

/// The slices of a host's ranks.
at::Tensor block_of(const at::Tensor& flat, int host, const Place& place) {
  const std::int64_t numel = flat.numel() / place.hosts;
  return flat.narrow(0, host * numel, numel);
}

at::Tensor slice_of(const at::Tensor& flat, int member, const Place& place) {
  const std::int64_t numel = flat.numel() / place.hosts / place.locals;
  return flat.narrow(0, member * numel, numel);
}

class ReduceScatterWork : public GlooWork {
 public:
  ReduceScatterWork(std::shared_ptr<GlooExchange> exchange, std::unique_ptr<Flight> flight,
                    at::Tensor dst, at::Tensor src, Steps steps, std::vector<at::Tensor> partials,
                    Reduction reduction)
      : GlooWork(std::move(exchange), std::move(flight), std::move(dst), std::move(src),
                 std::move(steps)),
        partials_(std::move(partials)),
        reduction_(reduction) {}

 private:
  void finish(const Flight&) override {
    std::vector<const void*> slices;
    for (const at::Tensor& partial : partials_) {
      slices.push_back(partial.const_data_ptr());
    }
    if (dst().numel() != 0) {
      reduce_slices(dst().mutable_data_ptr(), dst().scalar_type(), slices, dst().numel(),
                    partials_.front().scalar_type(), reduction_);
    }
  }

  std::vector<at::Tensor> partials_;  ///< by host; they lie in the flight's staging
  Reduction reduction_;
};

class TwoLevelCommunicator final : public GlooCommunicator {
 public:
  TwoLevelCommunicator(const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options,
                       int locals)
      : GlooCommunicator(store, options, kName),
        place_{.hosts = options.size / locals,
               .locals = locals,
               .host = options.rank / locals,
               .local = options.rank % locals},
        elsewhere_(std::make_shared<Elsewhere>()) {
    elsewhere_->watch(shared_exchange());
    const auto prefix = "fsdp/host/" + std::to_string(place_.host);
    host_ = make_shm_communicator({.store = c10::make_intrusive<c10d::PrefixStore>(prefix, store),
                                   .rank = place_.local,
                                   .size = locals,
                                   .timeout = options.timeout,
                                   .first_rank = place_.host * locals,
                                   .job_size = options.size},
                                  [elsewhere = elsewhere_] { return elsewhere->failure(); });
  }
  TwoLevelCommunicator(std::shared_ptr<GlooCommunicator> job, SeatPointer seat, Place place,
                       std::shared_ptr<Communicator> host)
      : GlooCommunicator(std::move(job), std::move(seat)), place_(place), host_(std::move(host)) {}

  std::string transport() const override { return kName; }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                       const Label& label) override;
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override;

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override {
    const DispatchGuard guard;
    return staging()->reserve(max_src_bytes / size() * (2 * place_.hosts - 1), in_flight) +
           host_->reserve_staging(max_src_bytes, in_flight);
  }

  at::Tensor buffer(std::int64_t bytes) override { return host_->buffer(bytes); }

  std::shared_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const std::string& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override {
    GlooCommunicator::set_timeout(timeout);
    host_->set_timeout(timeout);
  }

  void recover() override {
    GlooCommunicator::recover();
    if (elsewhere_) {  // of the whole job
      elsewhere_->watch(shared_exchange());
      host_->recover();
    }
  }

 private:
  static constexpr const char* kName = "shm+gloo";

  const Place place_;
  std::shared_ptr<Elsewhere> elsewhere_;
  std::shared_ptr<Communicator> host_;
};

std::unique_ptr<Work> TwoLevelCommunicator::all_gather(at::Tensor dst, at::Tensor src,
                                                       const Label& label) {
  const DispatchGuard guard;
  const Description description = check_all_gather(dst, src, size(), label);
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
  Steps steps;
  if (description.bytes != 0) {
    const auto gather_block = [=, host = host_, place = place_, exchange = shared_exchange()](
                                  const Flight& moved, int block) {
      on_host(*exchange, moved, [&] {
        const at::Tensor slices = block_of(flat, block, place);
        host->all_gather(slices, slice_of(flat, place.counterpart(block), place), label)->wait();
      });
    };
    steps.before_payloads = [=, place = place_](Flight& moved) { gather_block(moved, place.host); };
    steps.after_payloads = [=, place = place_](Flight& moved) {
      for (int block = 0; block < place.hosts; ++block) {
        if (block != place.host) {
          gather_block(moved, block);
        }
      }
    };
  }
  return std::make_unique<GlooWork>(shared_exchange(), std::move(flight), std::move(dst),
                                    std::move(src), std::move(steps));
}

std::unique_ptr<Work> TwoLevelCommunicator::reduce_scatter(at::Tensor dst, at::Tensor src,
                                                           Reduction reduction,
                                                           const Label& label) {
  const DispatchGuard guard;
  const Description description = check_reduce_scatter(dst, src, size(), reduction, label);
  const bool is_low = is_widening(at::kFloat, src.scalar_type());
  const at::ScalarType dtype = is_low ? at::kFloat : src.scalar_type();
  const auto bytes = dst.numel() * static_cast<std::int64_t>(at::elementSize(dtype));
  std::vector<at::Tensor> own;       // what this host adds to the slices of the hosts
  std::vector<at::Tensor> partials;  // what the hosts add to this rank's slice
  auto flight = start(description, [&](Flight& posted) {
    posted.pool = staging();
    posted.staging = staging()->take(bytes * (2 * place_.hosts - 1));
    auto* place = static_cast<std::byte*>(posted.staging.mutable_data_ptr());
    const auto next = [&] {
      return at::from_blob(std::exchange(place, place + bytes), {dst.numel()}, dtype);
    };
    for (int host = 0; host < place_.hosts; ++host) {
      own.push_back(next());
      partials.push_back(host == place_.host ? own.back() : next());
      if (host != place_.host) {
        exchange().receive(posted, place_.counterpart(host), partials.back().mutable_data_ptr(),
                           partials.back().nbytes());
      }
    }
  });
  Steps steps;
  if (bytes != 0) {
    const at::Tensor flat = src.detach().view({-1});
    // The own host's block comes last: the others have further to go.
    steps.before_payloads = [=, host = host_, place = place_,
                             exchange = shared_exchange()](Flight& moved) {
      const auto reduce_block = [&](int step) {
        const int block = (place.host + step) % place.hosts;
        return host->reduce_scatter(own[static_cast<std::size_t>(block)],
                                    block_of(flat, block, place), {}, label);
      };
      std::unique_ptr<Work> reducing;
      on_host(*exchange, moved, [&] { reducing = reduce_block(1); });
      for (int step = 1; step <= place.hosts; ++step) {
        on_host(*exchange, moved, [&] {
          auto next = step < place.hosts ? reduce_block(step + 1) : nullptr;
          reducing->wait();
          reducing = std::move(next);
        });
        if (const int block = (place.host + step) % place.hosts; block != place.host) {
          send_to(*exchange, moved, place.counterpart(block), own[static_cast<std::size_t>(block)]);
        }
      }
    };
  }
  return std::make_unique<ReduceScatterWork>(shared_exchange(), std::move(flight), std::move(dst),
                                             std::move(src), std::move(steps), std::move(partials),
                                             reduction);
}

std::unique_ptr<Work> TwoLevelCommunicator::broadcast(at::Tensor buffer, int root,
                                                      const Label& label) {
  const DispatchGuard guard;
  const Description description = check_broadcast(buffer, root, size(), label);
  const int root_local = root % place_.locals;
  auto flight = start(description, [&](Flight& posted) {
    if (place_.local != root_local || description.bytes == 0) {
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
  Steps steps;
  if (description.bytes != 0) {
    steps.after_payloads = [=, host = host_, exchange = shared_exchange()](Flight& moved) {
      on_host(*exchange, moved, [&] { host->broadcast(buffer, root_local, label)->wait(); });
    };
  }
  return std::make_unique<GlooWork>(shared_exchange(), std::move(flight), buffer, buffer,
                                    std::move(steps));
}

/// The group's ranks on this host are a group of this host, in any case. What the whole group is
/// depends on how its ranks lie on the hosts.
std::shared_ptr<Communicator> TwoLevelCommunicator::split(const std::vector<int>& ranks,
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
  auto host = host_->split(locals, label);
  // Of all hosts: nobody goes on, to recover() say, while others are still here.
  agree({.name = "split: " + label})->wait();
  if (ranks.size() == 1) {
    return make_group_of_one(shared_from_this());
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
    return std::make_shared<GlooCommunicator>(shared_job(), std::move(seat));
  }
  const auto each = static_cast<int>(locals.size());
  const Place place{
      .hosts = used, .locals = each, .host = seat->index / each, .local = seat->index % each};
  return std::make_shared<TwoLevelCommunicator>(shared_job(), std::move(seat), place,
                                                std::move(host));
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

std::shared_ptr<Communicator> make_two_level_communicator(
    const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options, int ranks_per_host) {
  const detail::DispatchGuard guard;
  auto communicator =
      std::make_shared<detail::TwoLevelCommunicator>(store, options, ranks_per_host);
  communicator->agree({.name = "connect hosts"})->wait();
  return communicator;
}

}  // namespace fsdp::comm
