// SPDX-License-Identifier: Apache-2.0
/// Times the collectives of one transport, and memcpy of the same bytes by all ranks at once, as
/// one of two ranks. Prints the rows as one JSON line. `threads`: both ranks in this process.
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "fsdp/fsdp.hpp"
#include "training/protocol.hpp"

namespace {

using nlohmann::json;

constexpr std::int64_t kSmallest = 4 << 10, kLargest = 256 << 20;

struct Cost {
  double us;      ///< the median of the wall's time
  double cpu_us;  ///< the mean of this process's time, all threads together
};

template <class Operation>
Cost cost_of(const fsdp::World& world, int times, Operation&& operation) {
  operation();  // faults pages in, connects
  world.barrier();
  const double cpu_begin = bench::cpu_ms();
  std::vector<double> all = bench::times_ms(times, operation);
  const double cpu_us = 1e3 * (bench::cpu_ms() - cpu_begin) / times;
  std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
  return {.us = 1e3 * all[all.size() / 2], .cpu_us = cpu_us};
}

/// Buffers of one size: a whole unit, and this rank's slice of one. Gradients lie where the engine
/// has them, in the transport's own memory.
json measure_size(const fsdp::World& world, std::int64_t bytes) {
  const fsdp::comm::Link& comm = world.link();
  const std::int64_t numel = bytes / 4, part = numel / world.size();
  const at::Tensor whole = torch::ones({numel}), copy = torch::ones({numel});
  const at::Tensor own = whole.narrow(0, part * world.rank(), part), slice = torch::ones({part});
  const at::Tensor gradients = comm.transport->buffer(bytes).view(at::kFloat).fill_(1);
  comm.transport->reserve_staging(bytes, 1);
  const int times = static_cast<int>(std::clamp<std::int64_t>(kLargest / bytes, 7, 300));
  const auto row = [&](const char* name, auto&& operation) {
    const Cost cost = cost_of(world, times, operation);
    return json{{"operation", name}, {"bytes", bytes}, {"us", cost.us}, {"cpu_us", cost.cpu_us}};
  };
  return json::array(
      {row("memcpy",
           [&] {
             std::memcpy(copy.mutable_data_ptr(), whole.const_data_ptr(),
                         static_cast<std::size_t>(bytes));
           }),
       row("all-gather",
           [&] { comm.transport->all_gather(whole, own, {.name = "bench"})->wait(); }),
       row("reduce-scatter",
           [&] {
             comm.transport->reduce_scatter(slice, gradients, {.divisor = 2.0}, {.name = "bench"})
                 ->wait();
           }),
       row("agree", [&] { comm.job->barrier({.name = "bench"}); })});
}

/// An all-gather of no bytes: what it takes ranks to find that they are in the same collective.
json measure_fingerprint(const fsdp::World& world) {
  constexpr int kRepeats = 2000;
  const at::Tensor nothing = torch::empty({0});
  const Cost cost = cost_of(world, kRepeats, [&] {
    world.transport().all_gather(nothing, nothing, {.name = "bench"})->wait();
  });
  return {{"operation", "fingerprint"}, {"bytes", 0}, {"us", cost.us}, {"cpu_us", cost.cpu_us}};
}

json measure(const fsdp::World& world) {
  torch::set_num_threads(1);
  json rows = json::array({measure_fingerprint(world)});
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    for (json& row : measure_size(world, bytes)) {
      rows.push_back(row);
    }
  }
  return rows;
}

int run(const std::string& transport) {
  json rows;
  if (transport == "threads") {
    fsdp::run_threads(2, [&](const fsdp::World& world) {
      json mine = measure(world);
      if (world.rank() == 0) {
        rows = std::move(mine);
      }
    });
  } else {
    rows = measure(fsdp::init({.transport = transport}));
  }
  bench::end_phase(json{{"phase", "done"}, {"rows", rows}}.dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "gloo");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_collectives: %s\n", error.what());
    return 1;
  }
}
