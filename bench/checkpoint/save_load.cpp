// SPDX-License-Identifier: Apache-2.0
/// Times saving and loading of a GPT with fsdp::optim::AdamW while it trains. `run DIR` prints one
/// JSON line; `shapes` prints the parameters' shapes and `bytes` what a checkpoint of them takes,
/// for the other systems. bench/checkpoint.sh alternates them.
#include <fcntl.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "fsdp/archive/listing.hpp"
#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "fsdp/models/gpt.hpp"

namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kSequence = 64;
constexpr std::int64_t kRows = 1;

fsdp::models::GPTConfig config() {
  return {.width = 768, .layers = 12, .heads = 12, .context = kSequence};
}

template <class Action>
double seconds(Action&& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What has been read must come from the disk again.
void evict(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

double largest(const fsdp::World& world, double value) {
  return std::ranges::max(fsdp::comm::gather_values(world.job(), value, "largest"));
}

int print_shapes() {
  const fsdp::models::GPT model(config());
  std::printf("{");
  const char* separator = "";
  for (const auto& parameter : model->named_parameters()) {
    std::string shape;
    for (const std::int64_t size : parameter.value().sizes()) {
      shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    }
    std::printf("%s\"%s\": [%s]", separator, parameter.key().c_str(), shape.c_str());
    separator = ", ";
  }
  std::printf("}\n");
  return 0;
}

int run(const std::string& directory) {
  torch::set_num_threads(1);
  const fsdp::World world = fsdp::init();
  torch::manual_seed(1);
  fsdp::models::GPT model(config());
  fsdp::Sharded sharded = fsdp::fully_shard(
      model, world,
      {.units = fsdp::units_of<fsdp::models::Block>(), .debug = {.print_promise = false}});
  fsdp::optim::AdamW optimizer(sharded, {.lr = 1e-4});
  const at::Tensor tokens = torch::randint(0, 256, {kRows, kSequence + 1});
  const auto step = [&] {
    model
        ->forward(tokens.narrow(1, 0, kSequence).contiguous(),
                  tokens.narrow(1, 1, kSequence).contiguous())
        .backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    times.push_back(seconds(step));
  }
  std::ranges::sort(times);
  const double step_s = times[times.size() / 2];
  const long before_mib = peak_mib();
  fsdp::checkpoint::Saver saver(directory, sharded, fsdp::checkpoint::state_of(optimizer));
  world.barrier();
  // Nothing beside it: throughput. Then under training: what the training loses.
  double stall_s = 0;
  const double save_s = largest(world, seconds([&] {
                                  stall_s = seconds([&] { saver.save(1); });
                                  saver.wait();
                                }));
  const double stall_alone_s = largest(world, stall_s);
  const double busy_s = largest(world, seconds([&] {
                                  stall_s = seconds([&] { saver.save(2); });
                                  step();
                                }));
  saver.wait();
  const std::string saved = fsdp::archive::resolve_checkpoint(directory);
  world.barrier();
  if (world.rank() == 0) {
    evict(saved);
  }
  world.barrier();
  const auto state = fsdp::checkpoint::state_of(optimizer);
  const double load_s =
      largest(world, seconds([&] { fsdp::checkpoint::load(saved, sharded, state.get()); }));
  const double load_warm_s =
      largest(world, seconds([&] { fsdp::checkpoint::load(saved, sharded, state.get()); }));
  if (world.rank() == 0) {
    std::printf(
        "{\"system\": \"fsdp\", \"bytes\": %lld, \"save_s\": %.4f, \"stall_s\": %.4f, \"load_s\": "
        "%.4f, \"load_warm_s\": %.4f, \"step_s\": %.4f, \"step_while_saving_s\": %.4f, "
        "\"more_mib\": %ld}\n",
        static_cast<long long>(3 * 4 * fsdp::models::parameter_count(config())), save_s,
        stall_alone_s, load_s, load_warm_s, step_s, busy_s, peak_mib() - before_mib);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "shapes") {
    return print_shapes();
  }
  if (mode == "bytes") {
    std::printf("%lld\n", static_cast<long long>(3 * 4 * fsdp::models::parameter_count(config())));
    return 0;
  }
  if (mode == "run" && argc == 3) {
    return run(argv[2]);
  }
  std::fprintf(stderr, "usage: bench_checkpoint run DIRECTORY | shapes | bytes\n");
  return 2;
}
