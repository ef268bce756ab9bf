// SPDX-License-Identifier: Apache-2.0
/// The library's optimizers and averages through checkpoints: to the same bits at the same number
/// of ranks, by names whatever the groups, at any other number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
using OwnFactory = std::function<std::unique_ptr<optim::FlatOptimizer>(const Sharded&)>;

constexpr int kSteps = 3;

/// One rank of a run with one of the library's optimizers.
struct OwnRun {
  OwnRun(const World& world_in, const OwnFactory& make, const SubjectKind& kind = tiny_gpt(true))
      : world(world_in),
        subject(make_subject(kind)),
        sharded(subject.shard(world_in, test_options(subject.units))),
        optimizer(make(sharded)) {}

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer->step();
    }
  }
  void save(const std::string& directory) {
    checkpoint::Saver saver(directory, sharded, checkpoint::state_of(*optimizer));
    saver.save(kSteps);
    saver.wait();
  }
  checkpoint::LoadReport load(const std::string& directory) {
    const auto state = checkpoint::state_of(*optimizer);
    return checkpoint::load(directory, sharded, state.get());
  }
  Snapshot snapshot() const {
    Snapshot snapshot;
    const FullParameters full = sharded.full_parameters();
    for (const at::Tensor& parameter : subject.parameters()) {
      snapshot.parameters.push_back(parameter.detach().clone());
    }
    return snapshot;
  }

  World world;
  Subject subject;
  Sharded sharded;
  std::unique_ptr<optim::FlatOptimizer> optimizer;
};

struct Rule {
  const char* name;
  SubjectKind subject;
  OwnFactory make;
  int parameters;
  int states;  ///< tensors of all parameters
};

constexpr int kOfGpt = 28;  ///< parameters of a tied tiny GPT, 8 of them matrices in blocks

std::vector<Rule> rules() {
  return {
      {"AdamW", tiny_gpt(true),
       [](const Sharded& sharded) {
         return std::make_unique<optim::AdamW>(
             sharded, std::vector<optim::Group<optim::AdamWOptions>>{
                          {.parameters = {"*bias"}, .options = {.lr = 0.037, .eps = 1e-4}},
                          {.parameters = {"*"}, .options = {.lr = 0.01, .eps = 1e-4}}});
       },
       kOfGpt, 2 * kOfGpt},
      {"Sgd", tiny_gpt(true),
       [](const Sharded& sharded) {
         return std::make_unique<optim::SGD>(
             sharded, optim::SGDOptions{.lr = 0.037, .momentum = 0.9, .dampening = 0.1});
       },
       kOfGpt, kOfGpt},
      // Of a GPT some gradients are zero but for rounding, whose sign depends on the ranks.
      {"Lion", odd_mlp(),
       [](const Sharded& sharded) {
         return std::make_unique<optim::Lion>(sharded, optim::LionOptions{.lr = 0.037});
       },
       4, 4},
      {"Muon", tiny_gpt(true),
       [](const Sharded& sharded) {
         return std::make_unique<optim::Muon>(sharded, optim::MuonOptions{.lr = 0.037},
                                              std::vector<std::string>{"w*"},
                                              optim::AdamWOptions{.lr = 0.02, .eps = 1e-4});
       },
       kOfGpt, 8 + 2 * (kOfGpt - 8)},
  };
}

class OwnOptimizerCheckpoint : public testing::TestWithParam<std::size_t> {};

TEST_P(OwnOptimizerCheckpoint, Fault085_GoesOnToTheSameBitsAndCountsWhatItLoads) {
  const Rule rule = rules()[GetParam()];
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    OwnRun whole(world, rule.make, rule.subject);
    whole.train(kSteps);
    whole.save(directory.path());
    whole.train(kSteps);
    OwnRun second(world, rule.make, rule.subject);
    // Another rate and position than the saved ones, which come back with the state.
    for (int group = 0; group < second.optimizer->groups(); ++group) {
      second.optimizer->set_values(group, {{"lr", 0.5}});
    }
    const auto report = second.load(directory.path());
    EXPECT_EQ(report.entries, rule.parameters + rule.states + rule.parameters);
    EXPECT_EQ(second.optimizer->values(0).at("lr"), 0.037);
    EXPECT_EQ(second.optimizer->steps(), kSteps);
    second.train(kSteps);
    expect_same_bits(second.snapshot(), whole.snapshot());
  });
}

TEST_P(OwnOptimizerCheckpoint, Fault097_AnotherNumberOfRanksGoesOnAlike) {
  const Rule rule = rules()[GetParam()];
  const TemporaryDirectory directory;
  Snapshot expected;
  run_threads(2, [&](World world) {
    OwnRun whole(world, rule.make, rule.subject);
    whole.train(kSteps);
    whole.save(directory.path());
    whole.train(kSteps);
    Snapshot end = whole.snapshot();
    if (world.rank() == 0) {
      expected = std::move(end);
    }
  });
  for (const int size : {1, 3}) {
    run_threads(size, [&](World world) {
      OwnRun other(world, rule.make, rule.subject);
      other.load(directory.path());
      other.train(kSteps);
      const Snapshot actual = other.snapshot();
      for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
        EXPECT_TRUE(torch::allclose(actual.parameters[i], expected.parameters[i], 0, 1e-12)) << i;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OwnOptimizerCheckpoint,
                         testing::Range(std::size_t{0}, rules().size()),
                         [](const auto& tested) { return rules()[tested.param].name; });

TEST(OptimizerCheckpointTest, Fault086_StateFollowsNamesWhateverTheGroups) {
  const TemporaryDirectory directory;
  const auto grouped = [](std::vector<std::string> first, std::vector<std::string> second) {
    return [=](const Sharded& sharded) {
      return std::make_unique<optim::SGD>(
          sharded, std::vector<optim::Group<optim::SGDOptions>>{
                       {.parameters = first, .options = {.lr = 0.05, .momentum = 0.9}},
                       {.parameters = second, .options = {.lr = 0.05, .momentum = 0.9}}});
    };
  };
  run_threads(2, [&](World world) {
    OwnRun whole(world, grouped({"*bias"}, {"*"}));
    whole.train(kSteps);
    whole.save(directory.path());
    whole.train(kSteps);
    OwnRun other(world, grouped({"h.1.*"}, {"*"}));
    other.load(directory.path());
    other.train(kSteps);
    // Other runs of memory: a fused kernel rounds its last elements in another way.
    const Snapshot actual = other.snapshot(), expected = whole.snapshot();
    for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual.parameters[i], expected.parameters[i], 0, 1e-14)) << i;
    }
  });
}

TEST(OptimizerCheckpointTest, Fault087_StockAndOwnOptimizersReadEachOthersState) {
  const TemporaryDirectory stock_directory, own_directory;
  const auto stock = [](std::vector<at::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.5));
  };
  const auto own = [](const Sharded& sharded) {
    return std::make_unique<optim::SGD>(sharded, optim::SGDOptions{.lr = 1, .momentum = 0.1});
  };
  run_threads(2, [&](World world) {
    const Subject subject = make_subject(tiny_gpt(true));
    CheckpointedRun whole(tiny_gpt(true), world, test_options(subject.units), stock);
    whole.train(kSteps);
    whole.save(stock_directory.path(), kSteps);
    whole.train(kSteps);
    // LibTorch's SGD counts no steps: the momentum that is there must not be taken for a first one.
    OwnRun other(world, own);
    other.load(stock_directory.path());
    EXPECT_EQ(other.optimizer->values(0).at("dampening"), 0.5);
    other.train(kSteps);
    const Snapshot actual = other.snapshot(), expected = whole.snapshot();
    for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual.parameters[i], expected.parameters[i], 0, 1e-14)) << i;
    }
  });
}

// --- averages ------------------------------------------------------------------------------------

/// Averages by the definition, of whole tensors.
struct PlainAverages {
  explicit PlainAverages(Snapshot first) : values(std::move(first.parameters)) {}
  void update(const Snapshot& weights, double decay) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = decay * values[i] + (1 - decay) * weights.parameters[i];
    }
  }
  std::vector<at::Tensor> values;
};

TEST(EmaTest, Fault051_AveragesAreTheDefinitionsAndSwapInAndOut) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(3, [&](World world) {
      const Subject subject = make_subject(tiny_gpt(true));
      Options options = test_options(subject.units);
      options.memory.store = store;
      if (store == Store::kSlots) {  // a gathered copy must not outlive the swap
        options.rules.push_back({.units = root_unit(), .keep_gathered = true});
      }
      const Sharded sharded = subject.shard(world, options);
      optim::SGD optimizer(sharded, {.lr = 0.1});
      const auto weights = [&] {
        Snapshot snapshot;
        const FullParameters full = sharded.full_parameters();
        for (const at::Tensor& parameter : subject.parameters()) {
          snapshot.parameters.push_back(parameter.detach().clone());
        }
        return snapshot;
      };
      optim::Ema ema(sharded, 0.8);
      PlainAverages plain(weights());
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        subject.loss_of(world.rank(), world.size()).backward();
        optimizer.step();
        ema.update();
        plain.update(weights(), 0.8);
      }
      EXPECT_EQ(sharded.report().promise[memory::Kind::kMoments],
                sharded.report().peak[memory::Kind::kMoments]);
      const Snapshot before = weights();
      const auto loss = [&] {
        const torch::NoGradGuard no_grad;
        return subject.loss_of(0, 1).item<double>();
      };
      const double loss_before = loss();
      {
        auto averaged = ema.swap_in();
        const Snapshot inside = weights();
        for (std::size_t i = 0; i < plain.values.size(); ++i) {
          EXPECT_TRUE(torch::allclose(inside.parameters[i], plain.values[i], 0, 1e-14)) << i;
        }
        EXPECT_NE(loss(), loss_before);
        EXPECT_THAT(error_of([&] { ema.update(); }), HasSubstr("end the scope"));
        EXPECT_THAT(error_of([&] { (void)ema.swap_in(); }), HasSubstr("swapped in already"));
        averaged.end();
      }
      expect_same_bits(weights(), before);
      EXPECT_EQ(loss(), loss_before);
      EXPECT_THAT(error_of([&] { ema.set_decay(1); }), HasSubstr("decay"));
    });
  }
}

TEST(EmaTest, Fault060_AveragesAreSavedByNameAndLoadedAtAnotherWorldSize) {
  const TemporaryDirectory directory;
  const auto make = [](const Sharded& sharded) {
    return std::make_unique<optim::AdamW>(sharded, optim::AdamWOptions{.lr = 0.01, .eps = 1e-4});
  };
  Snapshot expected;
  const auto averages = [](OwnRun& run, optim::Ema& ema) {
    const auto averaged = ema.swap_in();
    return run.snapshot();
  };
  run_threads(2, [&](World world) {
    OwnRun run(world, make);
    optim::Ema ema(run.sharded, 0.9);
    run.train(kSteps);
    ema.update();
    checkpoint::Saver saver(directory.path(), run.sharded,
                            checkpoint::with_averages(checkpoint::state_of(*run.optimizer), ema));
    saver.save(kSteps);
    saver.wait();
    Snapshot mine = averages(run, ema);
    if (world.rank() == 0) {
      expected = std::move(mine);
    }
  });
  run_threads(3, [&](World world) {
    OwnRun run(world, make);
    optim::Ema ema(run.sharded, 0.9);
    const auto state = checkpoint::with_averages(checkpoint::state_of(*run.optimizer), ema);
    checkpoint::load(directory.path(), run.sharded, state.get());
    expect_same_bits(averages(run, ema), expected);
    // Without the averages they are unexpected, said by name.
    EXPECT_THAT(error_of([&] { run.load(directory.path()); }), HasSubstr("wte.weight.ema"));
  });
}

}  // namespace
