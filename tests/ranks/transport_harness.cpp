// SPDX-License-Identifier: Apache-2.0
#include "ranks/transport_harness.hpp"

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/join/site.hpp"
#include "comm/transport_table.hpp"
#include "fsdp/comm/world.hpp"

namespace fsdp::test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};

/// Before the ranks meet: all on one host, or as many hosts as shm+gloo needs.
comm::detail::Site site_of(const std::string& transport, c10::intrusive_ptr<c10d::Store> store,
                           int rank, int size) {
  const int locals = transport != "shm+gloo" ? size : size % 3 == 0 ? 3 : 2;
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    hosts.push_back("host " + std::to_string(r / locals));
  }
  return {{.rank = rank, .size = size},
          {.store = std::move(store), .master_address = "127.0.0.1"},
          transport,
          kTimeout,
          std::move(hosts)};
}

bool serves(const comm::detail::TransportRow& row, const Needs& needs) {
  const comm::Traits& traits = row.info.traits;
  const bool is_threads = traits.name == "threads";
  if (row.info.carries_device || !row.info.not_built.empty() ||
      (needs.splits && !traits.can_split) || (needs.recovers && !traits.can_recover) ||
      (needs.has_processes && is_threads)) {
    return false;
  }
  return is_threads || std::ranges::none_of(needs.ranks, [&](int size) {
           return row.cannot_run(site_of(traits.name, {}, 0, size)).has_value();
         });
}

using Meeting = std::barrier<>;
thread_local Meeting* meeting_of_this_rank = nullptr;

/// A rank's place in the meeting of all; a rank that ends is no longer waited for.
class Seat {
 public:
  explicit Seat(Meeting& meeting) { meeting_of_this_rank = &meeting; }
  Seat(const Seat&) = delete;
  ~Seat() { std::exchange(meeting_of_this_rank, nullptr)->arrive_and_drop(); }
};

}  // namespace

[[gnu::weak]] std::vector<std::string> device_transports() { return {}; }
[[gnu::weak]] void run_device_ranks(const std::string&, int, const RankBody&) {}

namespace {
thread_local c10::Device rank_device = c10::kCPU;
}  // namespace

c10::Device device_of_rank() { return rank_device; }
void set_device_of_rank(c10::Device device) { rank_device = device; }
at::TensorOptions on_device(at::ScalarType dtype) {
  return at::TensorOptions(dtype).device(rank_device);
}
at::Tensor to_device(const at::Tensor& tensor) { return tensor.to(rank_device); }
at::Tensor to_host(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

void meet() { meeting_of_this_rank->arrive_and_wait(); }

std::vector<std::string> transports(const Needs& needs) {
  if (std::vector<std::string> devices = device_transports(); !devices.empty()) {
    return devices;
  }
  std::vector<std::string> names;
  for (const comm::detail::TransportRow& row : comm::detail::transport_table()) {
    if (serves(row, needs)) {
      names.push_back(row.info.traits.name);
    }
  }
  return names;
}

void run_ranks(const std::string& transport, int size, const RankBody& body) {
  Meeting meeting(size);
  if (!device_transports().empty()) {
    run_device_ranks(transport, size, [&](const comm::Link& link) {
      const Seat seat(meeting);
      body(link);
    });
    return;
  }
  if (transport == "threads") {
    run_threads(size, [&](World world) {
      const Seat seat(meeting);
      body(world.link());
    });
    return;
  }
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const Seat seat(meeting);
      try {
        body(comm::detail::find_row(transport).make(site_of(transport, store, rank, size)));
      } catch (...) {
        std::lock_guard lock(mutex);
        failure = failure ? failure : std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

Start gather(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name) {
  return [=](const comm::Link& group) {
    return group.transport->all_gather(at::zeros({count * group.size()}, on_device(dtype)),
                                       at::zeros({count}, on_device(dtype)),
                                       {.unit = unit, .name = name});
  };
}

Start reduce(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name) {
  return [=](const comm::Link& group) {
    return group.transport->reduce_scatter(at::zeros({count}, on_device(dtype)),
                                           at::zeros({count * group.size()}, on_device(dtype)), {},
                                           {.unit = unit, .name = name});
  };
}

}  // namespace fsdp::test
