// SPDX-License-Identifier: Apache-2.0
/// Times the collectives of one transport beside memcpy of the same bytes on all ranks at once, so
/// that both meet the same machine. Prints a JSON line a size: microseconds, medians over rounds.
/// bench/collectives.sh runs it.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"

namespace {

using fsdp::comm::Communicator;
using Clock = std::chrono::steady_clock;

/// What is timed for one size, in turns.
struct Times {
  std::vector<double> two_memcpys, ready_gather, all_gather, reduce_scatter;
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// An action that concerns this rank alone, on all ranks at once.
template <class Action>
double time_copy(Communicator& group, Action&& action) {
  group.agree({.name = "start"})->wait();
  const auto begin = Clock::now();
  action();
  return since(begin);
}

/// A collective that all ranks have started, as prefetching does: what starting and waiting take.
template <class Start>
double time_ready(Communicator& group, Start&& start) {
  auto begin = Clock::now();
  auto work = start();
  const double starting = since(begin);
  group.agree({.name = "all have started"})->wait();
  begin = Clock::now();
  work->wait();
  return starting + since(begin);
}

double median(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

void measure(Communicator& group, std::int64_t bytes, int rounds) {
  const std::int64_t slice = bytes / group.size();
  at::Tensor source = group.buffer(bytes).view(at::kFloat).fill_(1);
  at::Tensor whole = torch::ones({bytes / 4});
  at::Tensor shard = torch::ones({slice / 4});
  at::Tensor other = torch::ones({slice / 4});
  const at::Tensor weights = group.shared_memory(bytes, {.name = "weights"});
  const auto copy = [&] { std::memcpy(other.data_ptr(), shard.data_ptr(), other.nbytes()); };
  Times times;
  for (int round = 0; round < rounds; ++round) {
    times.two_memcpys.push_back(time_copy(group, [&] { copy(), copy(); }));
    times.ready_gather.push_back(
        time_ready(group, [&] { return group.agree({.unit = 0, .name = "ready"}); }));
    times.all_gather.push_back(
        time_ready(group, [&] { return group.all_gather(whole, shard, {.unit = 0}); }));
    times.reduce_scatter.push_back(time_ready(
        group, [&] { return group.reduce_scatter(shard, source, {.divisor = 2}, {.unit = 0}); }));
  }
  if (group.rank() == 0) {
    std::printf(
        "{\"transport\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"two_memcpys_us\": %.1f, "
        "\"ready_gather_us\": %.1f, \"all_gather_us\": %.1f, \"reduce_scatter_us\": %.1f}\n",
        group.transport().c_str(), group.size(), static_cast<long long>(bytes),
        median(times.two_memcpys), weights.defined() ? median(times.ready_gather) : -1.0,
        median(times.all_gather), median(times.reduce_scatter));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_collectives shm|gloo ROUNDS\n");
    return 2;
  }
  torch::set_num_threads(1);
  const fsdp::World world = fsdp::init({.transport = argv[1]});
  for (std::int64_t bytes = 4096; bytes <= std::int64_t{256} << 20; bytes *= 4) {
    const int most = std::max(5, static_cast<int>((std::int64_t{512} << 20) / bytes));
    measure(world.communicator(), bytes, std::min(std::atoi(argv[2]), most));
  }
  return 0;
}
