// SPDX-License-Identifier: Apache-2.0
/// A chain of 200 equal layers, cut into few or many units: the model, its computation and the
/// bytes that travel stay the same, so what a step costs more is the cost of units and collectives.
#include <torch/torch.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "fsdp/fsdp.hpp"
#include "training/plain_adamw.hpp"
#include "training/protocol.hpp"

namespace {

using bench::end_phase;

constexpr int kLayers = 200;
constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kRows = 16;

/// A run of layers. Sequential's own forward is a template, which keeps it out of a Sequential.
struct GroupImpl : torch::nn::SequentialImpl {
  at::Tensor forward(const at::Tensor& x) { return torch::nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Group);

/// `units` groups of layers.
torch::nn::Sequential make_chain(int units) {
  torch::manual_seed(1);
  torch::nn::Sequential chain;
  for (int unit = 0; unit < units; ++unit) {
    Group group;
    for (int i = unit * kLayers / units; i < (unit + 1) * kLayers / units; ++i) {
      group->push_back(torch::nn::Linear(kWidth, kWidth));
      group->push_back(torch::nn::Tanh());
    }
    chain->push_back(group);
  }
  return chain;
}

int run(const std::string& transport, const std::string& store, int units, int steps) {
  torch::set_num_threads(1);
  const bool is_plain = transport == "none";
  std::optional<fsdp::World> world;
  if (!is_plain) {
    world = fsdp::init({.transport = transport});
  }
  end_phase(R"({"phase": "init"})");
  torch::nn::Sequential chain = make_chain(units);
  std::optional<fsdp::Sharded> sharded;
  std::optional<bench::PlainAdamW> plain_optimizer;
  std::optional<fsdp::optim::AdamW> optimizer;
  if (is_plain) {
    plain_optimizer.emplace(chain->parameters(), 0, 2);
  } else {
    fsdp::Options options{.units = fsdp::units_matching("\\d+"), .debug = {.print_promise = false}};
    options.memory.store = store == "aliased" ? fsdp::Store::kAliased : fsdp::Store::kSlots;
    sharded = fsdp::fully_shard(chain, *world, options);
    optimizer.emplace(*sharded);
  }
  const at::Tensor x = torch::ones({kRows, kWidth});
  double loss_value = 0;
  const auto train = [&](auto& updater) {
    updater.zero_grad();
    const at::Tensor loss = chain->forward(x).square().mean();
    loss.backward();
    updater.step();
    loss_value = loss.item<double>();
  };
  const auto step = [&] { is_plain ? train(*plain_optimizer) : train(*optimizer); };
  bench::times_ms(3, step);
  end_phase(R"({"phase": "warm"})");
  if (sharded) {
    sharded->reset_counters();
  }
  const double cpu_begin = bench::cpu_ms();
  nlohmann::json line{{"phase", "timed"}, {"step_ms", bench::times_ms(steps, step)}};
  line["cpu_ms"] = (bench::cpu_ms() - cpu_begin) / steps;
  line["loss"] = loss_value;
  if (sharded) {
    const fsdp::Counters counters = sharded->report().counters;
    line["units"] = sharded->report().units.size();
    line["collectives"] = static_cast<double>(counters.gathers + counters.reduce_scatters) / steps;
  }
  end_phase(line.dump());
  end_phase(R"({"phase": "done"})");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: bench_chain none|TRANSPORT slots|aliased UNITS STEPS\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_chain: %s\n", error.what());
    return 1;
  }
}
