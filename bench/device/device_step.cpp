// SPDX-License-Identifier: Apache-2.0
/// Steps of a GPT-2 on one device, for tools/gpu_check.sh: by LibTorch alone (--system plain), or
/// sharded over the ranks that the environment describes (fsdp). Prints one JSON object: times of
/// steps, the loss, and what memory was promised, entered in the ledger and taken from LibTorch's
/// allocator.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/allocator_peak.hpp"
#include "fsdp/engine/deferred_init.hpp"
#include "fsdp/engine/recompute.hpp"
#include "fsdp/fsdp.hpp"
#include "fsdp/models/gpt.hpp"
#include "training/plain_adamw.hpp"

namespace {

struct Arguments {
  std::string system = "fsdp", device = "auto", transport = "auto", dtype = "float32";
  fsdp::models::GPTConfig model;
  std::int64_t batch = 1;
  int warmup = 2, steps = 5;
  bool recompute = false, offload = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Steps of a GPT-2 on one device");
  app.add_option("--system", arguments.system)->check(CLI::IsMember({"plain", "fsdp"}));
  app.add_option("--device", arguments.device);
  app.add_option("--transport", arguments.transport);
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--layers", arguments.model.layers);
  app.add_option("--width", arguments.model.width);
  app.add_option("--heads", arguments.model.heads);
  app.add_option("--seq", arguments.model.context);
  app.add_option("--vocab", arguments.model.vocab);
  app.add_option("--batch", arguments.batch);
  app.add_option("--warmup", arguments.warmup);
  app.add_option("--steps", arguments.steps);
  app.add_flag("--recompute", arguments.recompute);
  app.add_flag("--offload", arguments.offload);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return arguments;
}

struct Subject {
  std::function<double()> step;
  std::function<void(nlohmann::json&)> report = [](nlohmann::json&) {};
};

template <class Optimizer>
Subject steps_of(const fsdp::models::GPT& model, std::shared_ptr<Optimizer> optimizer,
                 const Arguments& arguments, c10::Device device) {
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const at::Tensor x = torch::randint(arguments.model.vocab,
                                      {arguments.batch, arguments.model.context}, torch::kLong)
                           .to(options);
  const at::Tensor y = x.roll(-1, 1).contiguous();
  return {.step = [=]() mutable {
    const at::Tensor loss = fsdp::models::GPT(model)->forward(x, y);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss.item<double>();
  }};
}

fsdp::models::GPT make_model(const Arguments& arguments) {
  fsdp::models::GPT model(arguments.model);
  model->to(arguments.dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32);
  if (arguments.recompute) {
    model->set_block_runner(
        [](const auto& block, at::Tensor x) { return fsdp::recompute(block, std::move(x)); });
  }
  return model;
}

Subject plain(const Arguments& arguments, c10::Device device) {
  fsdp::models::GPT model = make_model(arguments);
  model->to(device);
  return steps_of(model, std::make_shared<bench::PlainAdamW>(model->parameters(), 0, 1), arguments,
                  device);
}

Subject sharded(const Arguments& arguments, const fsdp::World& world) {
  const auto model = fsdp::deferred_init([&] { return make_model(arguments); });
  fsdp::Options options{.units = fsdp::units_of<fsdp::models::Block>(),
                        .debug = {.print_promise = false}};
  options.device = world.device();
  if (arguments.offload) {
    options.memory.offload.emplace();
  }
  fsdp::Sharded sharded = fsdp::fully_shard(model, world, options);
  auto optimizer = std::make_shared<fsdp::optim::AdamW>(
      sharded,
      fsdp::optim::AdamWOptions{.lr = bench::kLearningRate, .weight_decay = bench::kWeightDecay});
  Subject subject = steps_of(model, optimizer, arguments, world.device());
  subject.report = [sharded](nlohmann::json& line) {
    const fsdp::Report report = sharded.report();
    line["promise_mb"] = static_cast<double>(report.promise.total()) / 1e6;
    line["ledger_peak_mb"] = static_cast<double>(report.peak_total) / 1e6;
  };
  return subject;
}

int run(const Arguments& arguments) {
  torch::manual_seed(1);
  const fsdp::World world =
      fsdp::init({.transport = arguments.transport, .device = arguments.device});
  Subject subject =
      arguments.system == "plain" ? plain(arguments, world.device()) : sharded(arguments, world);
  nlohmann::json line{{"system", arguments.system},
                      {"device", world.device().str()},
                      {"transport", world.transport().traits().name},
                      {"ranks", world.size()},
                      {"parameters", fsdp::models::parameter_count(arguments.model)}};
  std::vector<double> losses;
  std::vector<double> times;
  for (int step = 0; step < arguments.warmup + arguments.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    losses.push_back(subject.step());
    if (step >= arguments.warmup) {
      times.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
  }
  line["losses"] = losses;
  line["step_ms"] = times;
  if (const auto peak = bench::allocator_peak_bytes(world.device())) {
    line["allocator_peak_mb"] = static_cast<double>(*peak) / 1e6;
  }
  subject.report(line);
  if (world.rank() == 0) {
    std::printf("%s\n", line.dump().c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_device: %s\n", error.what());
    return 1;
  }
}
