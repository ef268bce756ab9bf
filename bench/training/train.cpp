// SPDX-License-Identifier: Apache-2.0
/// One rank of a training benchmark, started by bench/harness.py:
///   fsdp     the model through fully_shard
///   plain    LibTorch alone: this rank's batch, the optimizer on its part of each weight, nothing
///            sent: the bound
///   traffic  the collectives of a step of `fsdp`, and nothing else
///   write    no steps: writes the weights and tokens that all systems start from
#include <torch/torch.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "fsdp/base/rank_env.hpp"
#include "fsdp/fsdp.hpp"
#include "training/arguments.hpp"
#include "training/inputs.hpp"
#include "training/plain_adamw.hpp"
#include "training/protocol.hpp"
#include "training/traffic.hpp"
#include "training/waits.hpp"

namespace {

using bench::Arguments;
using bench::end_phase;
using nlohmann::json;

/// Something to time, and what there is to say about it afterwards.
struct Subject {
  std::function<double()> step;  ///< returns the loss
  std::function<void(json&)> report = [](json&) {};
};

template <class Optimizer>
double train(Optimizer& optimizer, fsdp::models::GPT& model, const bench::Batch& batch) {
  optimizer.zero_grad();
  const at::Tensor loss = model->forward(batch.x, batch.y);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

/// Faults in LibTorch's code and tables, so that memory measured from here on is the model's.
void warm_libraries() {
  fsdp::models::GPT model(fsdp::models::preset("tiny"));
  bench::PlainAdamW optimizer(model->parameters(), 0, 1);
  const at::Tensor tokens = torch::zeros({1, 8}, torch::kLong);
  train(optimizer, model, {.x = tokens, .y = tokens});
}

Subject plain(const Arguments& arguments, const fsdp::base::RankEnvironment& rank) {
  fsdp::models::GPT model = bench::read_model(arguments.model, arguments.weights);
  auto optimizer = std::make_shared<bench::PlainAdamW>(model->parameters(), rank.rank, rank.size);
  const bench::Batch batch = bench::read_batch(arguments.tokens, rank.rank * arguments.batch,
                                               arguments.batch, arguments.model.context);
  return {.step = [=]() mutable { return train(*optimizer, model, batch); }};
}

struct ShardedModel {
  fsdp::models::GPT model;
  fsdp::Sharded sharded;
  std::shared_ptr<fsdp::optim::AdamW> optimizer;
};

ShardedModel shard(const Arguments& arguments, const fsdp::World& world,
                   std::function<void(const fsdp::trace::Event&)> observer) {
  fsdp::models::GPT model = bench::read_model(arguments.model, arguments.weights);
  fsdp::Options options{.units = fsdp::units_of<fsdp::models::Block>(),
                        .memory = {.prefetch = arguments.prefetch},
                        .debug = {.print_promise = false, .observer = std::move(observer)}};
  options.memory.store = arguments.store == "aliased" ? fsdp::Store::kAliased : fsdp::Store::kSlots;
  fsdp::Sharded sharded = fsdp::fully_shard(model, world, options);
  auto optimizer = std::make_shared<fsdp::optim::AdamW>(
      sharded,
      fsdp::optim::AdamWOptions{.lr = bench::kLearningRate, .weight_decay = bench::kWeightDecay});
  return {model, sharded, optimizer};
}

Subject sharded(const Arguments& arguments, const fsdp::World& world) {
  auto waits = std::make_shared<bench::Waits>();
  ShardedModel parts =
      shard(arguments, world, [waits](const fsdp::trace::Event& event) { waits->observe(event); });
  const bench::Batch batch = bench::read_batch(arguments.tokens, world.rank() * arguments.batch,
                                               arguments.batch, arguments.model.context);
  const int all_steps = arguments.warmup + arguments.steps;
  return {
      .step = [=]() mutable { return train(*parts.optimizer, parts.model, batch); },
      .report =
          [=](json& line) {
            const fsdp::Counters counters = parts.sharded.report().counters;
            line["units"] = parts.sharded.report().units.size();
            line["collectives"] =
                1.0 * static_cast<double>(counters.gathers + counters.reduce_scatters) / all_steps;
            const auto per_step = [&](const std::map<int, std::int64_t>& by_unit) {
              json list = json::array();
              for (const auto& [unit, ns] : by_unit) {
                list.push_back(1e-6 * static_cast<double>(ns) / all_steps);
              }
              return list;
            };
            line["gather_wait_ms"] = per_step(waits->gathers());
            line["reduce_wait_ms"] = per_step(waits->reductions());
            line["touches"] = 1.0 * static_cast<double>(counters.touches) / all_steps;
            line["promise_mb"] = static_cast<double>(parts.sharded.report().promise.total()) / 1e6;
            line["ledger_peak_mb"] = static_cast<double>(parts.sharded.report().peak_total) / 1e6;
          }};
}

Subject traffic(const Arguments& arguments, const fsdp::World& world) {
  auto replay = std::make_shared<bench::Traffic>();
  ShardedModel parts = shard(arguments, world,
                             [replay](const fsdp::trace::Event& event) { replay->observe(event); });
  const bench::Batch batch = bench::read_batch(arguments.tokens, world.rank() * arguments.batch,
                                               arguments.batch, arguments.model.context);
  train(*parts.optimizer, parts.model, batch);  // the first pass has no recorded order yet
  replay->is_recording = true;
  const double loss = train(*parts.optimizer, parts.model, batch);
  replay->is_recording = false;
  replay->prepare(parts.sharded);
  return {.step = [=] {
    replay->replay();
    return loss;
  }};
}

int run(const Arguments& arguments) {
  if (arguments.system == "write") {
    bench::write_inputs(arguments.model, arguments.batch, arguments.weights, arguments.tokens);
    return 0;
  }
  torch::set_num_threads(1);
  const fsdp::base::RankEnvironment environment = fsdp::base::read_rank_environment();
  std::optional<fsdp::World> world;
  if (arguments.system != "plain") {
    world = fsdp::init({.transport = arguments.transport});
  }
  warm_libraries();
  end_phase(R"({"phase": "init"})");

  Subject subject = arguments.system == "plain"  ? plain(arguments, environment)
                    : arguments.system == "fsdp" ? sharded(arguments, *world)
                                                 : traffic(arguments, *world);
  double loss = 0;
  const auto step = [&] { loss = subject.step(); };
  bench::times_ms(arguments.warmup, step);
  end_phase(R"({"phase": "warm"})");

  const double cpu_begin = bench::cpu_ms();
  json line{{"phase", "timed"}, {"step_ms", bench::times_ms(arguments.steps, step)}};
  line["cpu_ms"] = (bench::cpu_ms() - cpu_begin) / arguments.steps;
  line["loss"] = loss;
  subject.report(line);
  end_phase(line.dump());

  bench::times_ms(arguments.memory_steps, step);
  end_phase(R"({"phase": "done"})");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(bench::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train: %s\n", error.what());
    return 1;
  }
}
