// SPDX-License-Identifier: Apache-2.0
#include "ranks/transport_harness.hpp"

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/gloo/gloo.hpp"
#include "comm/shm/shm.hpp"
#include "comm/two_level/two_level.hpp"
#include "fsdp/comm/c10d.hpp"
#include "fsdp/comm/world.hpp"

namespace fsdp::test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};

std::shared_ptr<comm::Communicator> connect(const std::string& transport,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size) {
  const comm::GlooOptions options{
      .rank = rank, .size = size, .master_addr = "127.0.0.1", .timeout = kTimeout};
  if (transport == "c10d") {
    auto communicator = comm::make_c10d_communicator(comm::connect_gloo(store, options), kTimeout);
    // A rank that ends at once closes connections that others are still making.
    communicator->agree({.name = "init"})->wait();
    return communicator;
  }
  if (transport == "shm") {
    return comm::make_shm_communicator(
        {.store = store, .rank = rank, .size = size, .timeout = kTimeout});
  }
  if (transport == "shm+gloo") {
    return comm::make_two_level_communicator(store, options, size % 3 == 0 ? 3 : 2);
  }
  return comm::make_gloo_communicator(store, options);
}

}  // namespace

void run_ranks(const std::string& transport, int size, const RankBody& body) {
  if (transport == "threads") {
    run_threads(size, [&](World world) { body(world.communicator()); });
    return;
  }
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = connect(transport, store, rank, size);
        body(*communicator);
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
  return [=](comm::Communicator& group) {
    return group.all_gather(at::zeros({count * group.size()}, dtype), at::zeros({count}, dtype),
                            {.unit = unit, .name = name});
  };
}

Start reduce(std::int64_t count, at::ScalarType dtype, int unit, const std::string& name) {
  return [=](comm::Communicator& group) {
    return group.reduce_scatter(at::zeros({count}, dtype), at::zeros({count * group.size()}, dtype),
                                {}, {.unit = unit, .name = name});
  };
}

}  // namespace fsdp::test
