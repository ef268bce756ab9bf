// SPDX-License-Identifier: Apache-2.0
/// Random modules, sharded and trained in random ways, against plain LibTorch in one process.
/// FSDP_PROPERTY_SEED and FSDP_PROPERTY_CASES choose other ones; a failure prints the seed of its
/// case, which as FSDP_PROPERTY_SEED with FSDP_PROPERTY_CASES=1 repeats it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "support/random_model.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

constexpr int kBlocks = 10;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

RandomNet make_net(const RandomPlan& plan) {
  static std::mutex generator;
  std::lock_guard lock(generator);
  return RandomNet(plan);
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const RandomPlan& plan,
                                                        std::vector<at::Tensor> parameters) {
  if (plan.has_adam) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(1e-2).eps(1e-4));
  }
  return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone());
  }
  return copies;
}

/// Each tied weight once: torch::nn::Module lists it under every name.
std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> distinct;
  for (const at::Tensor& tensor : tensors) {
    if (std::ranges::none_of(distinct, [&](const auto& seen) { return seen.is_same(tensor); })) {
      distinct.push_back(tensor);
    }
  }
  return distinct;
}

/// One process plays all ranks.
std::vector<at::Tensor> train_reference(const RandomPlan& plan) {
  RandomNet net = make_net(plan);
  const auto optimizer = make_optimizer(plan, distinct(net->parameters()));
  for (int step = 0; step < plan.steps; ++step) {
    net->freeze_for(step);
    optimizer->zero_grad();
    for (int micro = 0; micro < plan.micro_batches[static_cast<std::size_t>(step)]; ++micro) {
      for (int rank = 0; rank < plan.ranks; ++rank) {
        (net->loss(step, micro, rank) / plan.ranks).backward();
      }
    }
    optimizer->step();
  }
  return copies_of(net->parameters());
}

Options draw_options(const RandomPlan& plan, const Units& units) {
  Draw draw(plan.seed + 1000003);
  Options options{.units = units, .print_promise = false, .poison_freed = true};
  options.prefetch = draw.between(0, 3);
  options.keep_root = draw.one_in(2);
  options.align_bytes = draw.any_of<int>({0, 16, 128});
  options.store = draw.one_in(2) ? Store::kSlots : Store::kAliased;
  return options;
}

std::vector<at::Tensor> train_sharded(const RandomPlan& plan, const World& world) {
  RandomNet net = make_net(plan);
  const std::vector<at::Tensor> parameters = net->parameters();
  Sharded sharded = fully_shard(net, world, draw_options(plan, net->units()));
  const auto optimizer = make_optimizer(plan, sharded.parameters());
  for (int step = 0; step < plan.steps; ++step) {
    net->freeze_for(step);
    optimizer->zero_grad();
    for (int micro = 0; micro < plan.micro_batches[static_cast<std::size_t>(step)]; ++micro) {
      net->loss(step, micro, world.rank()).backward();
    }
    optimizer->step();
    if (plan.evaluates) {
      torch::NoGradGuard no_grad;
      net->loss(step, 0, world.rank());
    }
    if (plan.reads_full) {
      const FullParameters full = sharded.full_parameters();
    }
  }
  sharded.reshard();
  EXPECT_EQ(sharded.unsharded_numel(), 0);
  EXPECT_EQ(sharded.ledger().live()[memory::Kind::kFullScope], 0);
  const FullParameters full = sharded.full_parameters();
  return copies_of(parameters);
}

void expect_parity(const RandomPlan& plan) {
  SCOPED_TRACE(to_string(plan));
  const std::vector<at::Tensor> expected = train_reference(plan);
  std::mutex mutex;
  run_threads(plan.ranks, [&](World world) {
    const std::vector<at::Tensor> actual = train_sharded(plan, world);
    std::lock_guard lock(mutex);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double difference = (actual[i] - expected[i]).abs().max().item<double>();
      EXPECT_LE(difference, 1e-11) << "rank " << world.rank() << ", parameter " << i << "\n"
                                   << to_string(plan);
    }
  });
}

class RandomModels : public testing::TestWithParam<int> {};

TEST_P(RandomModels, TrainAsInOneProcess) {
  const std::uint64_t first = from_environment("FSDP_PROPERTY_SEED", 1);
  const std::uint64_t cases = from_environment("FSDP_PROPERTY_CASES", 500);
  for (std::uint64_t i = static_cast<std::uint64_t>(GetParam()); i < cases; i += kBlocks) {
    try {
      expect_parity(draw_plan(first + i));
    } catch (const std::exception& error) {
      ADD_FAILURE() << to_string(draw_plan(first + i)) << "\n" << error.what();
    }
    if (HasFailure()) {
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, RandomModels, testing::Range(0, kBlocks));

}  // namespace
