// SPDX-License-Identifier: Apache-2.0
/// A training run that can be stopped at any moment and goes on where it was:
///
///     save_and_resume DIRECTORY [STEPS]
///     fsdp run -n 2 save_and_resume DIRECTORY 40
///
/// Another number of ranks may go on. docs/how-to/save-and-resume.md explains it.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "fsdp/archive/listing.hpp"
#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"

namespace {

namespace checkpoint = fsdp::checkpoint;

constexpr std::int64_t kGlobalBatch = 24;
constexpr std::int64_t kSaveEvery = 5;

/// Sample `index` of an endless stream: a point and whether it lies in the unit circle.
at::Tensor sample(std::int64_t index) {
  const double x = static_cast<double>(index * 37 % 101) / 50.0 - 1.0;
  const double y = static_cast<double>(index * 61 % 103) / 51.0 - 1.0;
  return torch::tensor({x, y, x * x + y * y < 1 ? 1.0 : 0.0}, torch::kFloat);
}

void train(const std::string& directory, std::int64_t steps) {
  const fsdp::World world = fsdp::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(2, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
  // begin make
  fsdp::Sharded sharded = fsdp::fully_shard(model, world, {.debug = {.print_promise = false}});
  fsdp::optim::AdamW optimizer(sharded, {.lr = 1e-2});
  const auto state = checkpoint::state_of(optimizer);  // torch::optim: state_of(optimizer, sharded)
  checkpoint::Saver saver(directory, sharded, checkpoint::state_of(optimizer), {.keep = 3});
  // end make

  // begin resume
  std::int64_t step = 0, next_sample = 0;
  if (fsdp::archive::latest_checkpoint(directory).found) {
    const checkpoint::LoadReport report = checkpoint::load(directory, sharded, state.get());
    checkpoint::set_rng_state(report.rng);
    step = report.step;
    next_sample = std::get<std::int64_t>(report.values.at("data").at("next_sample"));
  }
  // end resume
  for (; step < steps; ++step) {
    std::vector<at::Tensor> batch;
    for (std::int64_t i = world.rank(); i < kGlobalBatch; i += world.size()) {
      batch.push_back(sample(next_sample + i));
    }
    const at::Tensor rows = torch::stack(batch);
    const at::Tensor loss = torch::binary_cross_entropy_with_logits(
        model->forward(rows.narrow(1, 0, 2)), rows.narrow(1, 2, 1));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    next_sample += kGlobalBatch;
    if (world.rank() == 0) {
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(step + 1), loss.item<double>());
    }
    // begin save
    if ((step + 1) % kSaveEvery == 0) {  // returns after a copy; a thread writes it
      saver.save(step + 1, {.values = {{"data", {{"next_sample", next_sample}}}},
                            .rng = checkpoint::rng_state()});
    }
    // end save
  }
  saver.wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: save_and_resume DIRECTORY [STEPS]\n");
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::atoll(argv[2]) : 20);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
