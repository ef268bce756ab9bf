// SPDX-License-Identifier: Apache-2.0
/// Offloading beside the rest of the library: the same bits as without it, whatever optimizer
/// steps, however a module came to be, is saved, frozen or recomputed.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint_support.hpp"
#include "fsdp/fsdp.hpp"
#include "optimizer_support.hpp"
#include "support/error_of.hpp"
#include "support/slow_copier.hpp"
#include "support/strategy_cases.hpp"
#include "support/temporary_directory.hpp"
#include "support/twins.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;
namespace nn = torch::nn;

Options with_offload(Options options) {
  options.memory.offload.emplace();
  options.memory.offload->copier = std::make_shared<SlowCopier>(std::chrono::milliseconds(1));
  return options;
}

Snapshot train(const World& world, const Options& options, const OwnFactory& make_optimizer) {
  const Subject subject = make_subject(odd_mlp());
  Sharded sharded = subject.shard(world, options);
  const auto optimizer = make_optimizer(sharded);
  optim::Ema averages(sharded, 0.5);
  LossScaler scaler(sharded);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    scaler.scale(subject.loss_of(world.rank(), world.size())).backward();
    scaler.unscale_(/*max_norm=*/0.1);
    optimizer->step();
    scaler.update();
    averages.update();
    EXPECT_EQ(sharded.report().live, sharded.report().promise);
  }
  const auto averaged = averages.swap_in();
  Snapshot snapshot;
  const FullParameters full = sharded.full_parameters();
  for (const at::Tensor& parameter : subject.parameters()) {
    snapshot.parameters.push_back(parameter.detach().clone());
  }
  return snapshot;
}

TEST(OffloadLife, EveryOptimizerStepsToTheSameBits) {
  const std::vector<OwnFactory> optimizers = {
      own<optim::AdamW>(optim::AdamWOptions{.lr = 0.01}),
      own<optim::SGD>(optim::SGDOptions{.lr = 0.01, .momentum = 0.9}),
      own<optim::Lion>(optim::LionOptions{.lr = 0.01}),
      own<optim::Muon>(optim::MuonOptions{.lr = 0.01})};
  for (const OwnFactory& optimizer : optimizers) {
    run_threads(3, [&](World world) {
      const Options options = test_options(units_listed({"a", "b"}));
      expect_same_bits(train(world, with_offload(options), optimizer),
                       train(world, options, optimizer));
    });
  }
}

TEST(OffloadLife, MuonsMatricesAreTheHosts) {
  run_threads(2, [](World world) {
    const Subject subject = make_subject(odd_mlp());
    Sharded sharded = subject.shard(world, with_offload(test_options({})));
    const memory::Bytes before = sharded.report().promise;
    const optim::Muon optimizer(sharded, {.lr = 0.01});
    EXPECT_EQ(sharded.report().promise[Kind::kStaging], before[Kind::kStaging]);
    EXPECT_GT(sharded.report().promise[Kind::kOffloadHost], before[Kind::kOffloadHost]);
  });
}

TEST(OffloadLife, CheckpointsGoFromHostToHostAtAnyWorldSize) {
  const TemporaryDirectory directory;
  const Options options = test_options(units_listed({"a", "b"}));
  Snapshot expected;
  run_threads(3, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, with_offload(options), adam());
    run.train(2);
    run.save(directory.path(), 2);
    const Snapshot snapshot = run.snapshot();
    if (world.rank() == 0) {
      expected = snapshot;
    }
  });
  for (const bool offloads : {true, false}) {
    run_threads(2, [&](World world) {
      CheckpointedRun run(odd_mlp(), world, offloads ? with_offload(options) : options, adam());
      run.load(directory.path());
      expect_same_bits(run.snapshot(), expected);
      run.train(1);
      EXPECT_EQ(run.sharded.report().unsharded_numel, 0);
    });
  }
}

TEST(OffloadLife, SmallParametersBesideReplicasAddUp) {
  // A replicated unit's reduction takes other ways than a hybrid one's; they share the areas.
  run_threads(4, [](World world) {
    std::vector<Snapshot> snapshots;
    for (const bool offloads : {false, true}) {
      Chain model = make_model();
      Options options = options_of({Strategy::kHybrid, 2, 2}, world, 0);
      options.replicate_below = 10;
      Sharded sharded = fully_shard(model, world, offloads ? with_offload(options) : options);
      optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        for (int micro_step = 0; micro_step < 2; ++micro_step) {
          model->forward(rows_of(world.rank(), 4) + micro_step).square().mean().backward();
        }
        optimizer.step();
        EXPECT_EQ(sharded.report().live, sharded.report().promise);
      }
      const FullParameters full = sharded.full_parameters();
      Snapshot& snapshot = snapshots.emplace_back();
      for (const at::Tensor& parameter : model->parameters()) {
        snapshot.parameters.push_back(parameter.detach().clone());
      }
    }
    expect_parity(snapshots[1], snapshots[0]);
  });
}

struct Branches : nn::Module {
  Branches()
      : a(register_module("a", nn::Linear(4, 4))),
        b(register_module("b", nn::Linear(4, 4))),
        c(register_module("c", nn::Linear(4, 4))) {}
  nn::Linear a, b, c;
};

TEST(OffloadLife, FrozenUnfrozenUnusedAndRecomputedLayersTrain) {
  Training<Branches> training{.ranks = 3, .steps = 4};
  training.options = with_offload(test_options(units_listed({"a", "b", "c"})));
  training.before = [](Branches& model, int step) {
    for (at::Tensor& parameter : model.b->parameters()) {
      parameter.requires_grad_(step >= 2);
    }
  };
  training.loss = [](Branches& model, int step, int rank) {
    at::Tensor x = batch(4, step, rank);
    x = recompute([&model](at::Tensor h) { return torch::tanh(model.a(h)); }, x);
    x = model.b(x);
    return (step == 1 ? x : model.c(x)).square().mean();
  };
  expect_twins(training);
}

TEST(OffloadLife, ModulesLargerThanMemoryAreFilledAtHome) {
  run_threads(2, [](World world) {
    std::shared_ptr<nn::Module> model;
    {
      const DeferredInit deferred;
      model = std::make_shared<Branches>();
    }
    Sharded sharded = fully_shard(model, world, with_offload(test_options({})));
    auto& branches = static_cast<Branches&>(*model);
    branches.a(torch::ones({1, 4})).sum().backward();
    EXPECT_GT(whole_gradients(sharded)[0].abs().sum().item<float>(), 0);
  });
}

TEST(OffloadLife, ABackwardThatDiesLeavesNothingUnderWay) {
  run_threads(2, [](World world) {
    Chain model = make_model();
    const Options options = with_offload(test_options(chain_units()));
    auto* copier = static_cast<SlowCopier*>(options.memory.offload->copier.get());
    Sharded sharded = fully_shard(model, world, options);
    const auto run = [&](bool dies) {
      at::Tensor x = model->links[0](model->first(rows_of(world.rank(), 2)));
      if (dies) {
        x.register_hook([](const at::Tensor&) { throw std::runtime_error("died"); });
      }
      model->last(model->links[1](x)).square().mean().backward();
    };
    run(false);
    const std::vector<at::Tensor> expected = whole_gradients(sharded);
    EXPECT_NE(error_of([&] { run(true); }), "no error");
    sharded.zero_grad();
    EXPECT_EQ(copier->left(), 0);
    run(false);
    const std::vector<at::Tensor> actual = whole_gradients(sharded);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  });
}

}  // namespace
