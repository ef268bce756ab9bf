// SPDX-License-Identifier: Apache-2.0
/// What a checkpoint brings back: training goes on as if it had not stopped, whatever the number of
/// ranks, the units and the alignment before and after.
#include <gmock/gmock.h>

#include <filesystem>

#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/optim/adamw.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 5;

Snapshot parameters_only(Snapshot snapshot) {
  snapshot.first_gradients.clear();
  return snapshot;
}

void save_after_training(const SubjectKind& kind, int ranks, const std::string& directory,
                         const OptimizerFactory& optimizer = adam(), std::int64_t align = 0) {
  run_threads(ranks, [&](World world) {
    CheckpointedRun run(kind, world, test_options({}, align), optimizer);
    run.train(kSteps);
    run.save(directory, kSteps);
  });
}

class WorldSizeChange : public ::testing::TestWithParam<int> {};

TEST_P(WorldSizeChange, Fault097_AnyWorldSizeGoesOnFromAnyOther) {
  const TemporaryDirectory directory;
  const Snapshot expected = parameters_only(train_reference(odd_mlp(), 1, adam(), 2 * kSteps));
  save_after_training(odd_mlp(), GetParam(), directory.path());
  for (int ranks : {1, 2, 3, 4, 8}) {
    run_threads(ranks, [&](World world) {
      CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
      const auto report = run.load(directory.path());
      EXPECT_EQ(report.step, kSteps);
      EXPECT_EQ(report.entries, 4 + 2 * 4 + 4) << "parameters, moments, counters";
      run.train(kSteps);
      const Snapshot actual = run.snapshot();
      if (world.rank() == 0) {
        expect_parity(actual, expected);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(From, WorldSizeChange, ::testing::Values(1, 2, 3, 4, 8));

TEST(CheckpointTest, Fault085_ResumeAtTheSameWorldSizeIsBitwise) {
  const TemporaryDirectory directory;
  for (const OptimizerFactory& optimizer : {adam(), sgd_with_momentum()}) {
    run_threads(2, [&](World world) {
      CheckpointedRun whole(tiny_gpt(true), world, test_options({}), optimizer);
      whole.train(kSteps);
      whole.save(directory.path(), kSteps);
      whole.train(kSteps);
      CheckpointedRun second(tiny_gpt(true), world, test_options({}), optimizer);
      second.load(directory.path());
      second.train(kSteps);
      expect_same_bits(second.snapshot(), whole.snapshot());
    });
  }
}

TEST(CheckpointTest, TheFusedOptimizerGoesOnBitwiseWithItsRates) {
  const TemporaryDirectory directory;
  run_threads(3, [&](World world) {
    const auto train = [&](Subject& subject, optim::AdamW& optimizer) {
      for (int step = 0; step < kSteps; ++step) {
        subject.loss_of(world.rank(), world.size()).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    Subject subject = make_subject(odd_mlp());
    Sharded sharded = subject.shard(world, test_options({}));
    optim::AdamW optimizer(sharded, {.lr = 0.037, .beta1 = 0.8, .eps = 1e-4});
    train(subject, optimizer);
    checkpoint::Saver saver(directory.path(), sharded, checkpoint::state_of(optimizer));
    saver.save(kSteps);
    train(subject, optimizer);
    saver.wait();

    Subject other = make_subject(odd_mlp());
    Sharded other_sharded = other.shard(world, test_options({}));
    optim::AdamW other_optimizer(other_sharded, {.lr = 0.5});
    const auto state = checkpoint::state_of(other_optimizer);
    checkpoint::load(directory.path(), other_sharded, state.get());
    EXPECT_EQ(other_optimizer.steps(), kSteps);
    EXPECT_EQ(other_optimizer.options().lr, 0.037);
    EXPECT_EQ(other_optimizer.options().beta1, 0.8);
    train(other, other_optimizer);
    for (std::size_t i = 0; i < sharded.parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(sharded.parameters()[i], other_sharded.parameters()[i]));
    }
  });
}

TEST(CheckpointTest, Fault161_StateOfAnotherOptimizerIsRefusedByName) {
  const test::TemporaryDirectory directory;
  run_threads(1, [&](World world) {
    torch::nn::Linear model(3, 2);
    Sharded sharded = fully_shard(model, world, {.debug = {.print_promise = false}});
    torch::optim::Adam adam(sharded.parameters());
    model->forward(torch::ones({1, 3})).sum().backward();
    adam.step();
    checkpoint::Saver saver(directory.path(), sharded, checkpoint::state_of(adam, sharded));
    saver.save(1);
    saver.wait();
    torch::optim::AdamW other(sharded.parameters());  // its moments have the same names
    const auto state = checkpoint::state_of(other, sharded);
    const std::string text =
        test::error_of([&] { checkpoint::load(directory.path(), sharded, state.get()); });
    EXPECT_THAT(text,
                ::testing::HasSubstr("has the state of the optimizer Adam, this one is AdamW"));
    EXPECT_NO_THROW(checkpoint::load(directory.path(), sharded, nullptr));
  });
}

TEST(CheckpointTest, Fault087_RatesAreRestored) {
  const TemporaryDirectory directory;
  const auto with_rate = [](double rate) {
    return [rate](std::vector<at::Tensor> parameters) {
      return std::make_shared<torch::optim::AdamW>(std::move(parameters),
                                                   torch::optim::AdamWOptions(rate));
    };
  };
  run_threads(2, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, test_options({}), with_rate(0.1));
    run.train(2);
    run.optimizer->param_groups()[0].options().set_lr(0.037);
    run.save(directory.path(), 7, {.values = {{"schedule", {{"position", std::int64_t{7}}}}}});
    CheckpointedRun other(odd_mlp(), world, test_options({}), with_rate(0.5));
    const auto report = other.load(directory.path());
    EXPECT_EQ(other.optimizer->param_groups()[0].options().get_lr(), 0.037);
    EXPECT_EQ(std::get<std::int64_t>(report.values.at("schedule").at("position")), 7);
    CheckpointedRun kept(odd_mlp(), world, test_options({}), with_rate(0.5));
    kept.load(directory.path(), {.optimizer_options = false});
    EXPECT_EQ(kept.optimizer->param_groups()[0].options().get_lr(), 0.5);
  });
}

TEST(CheckpointTest, Fault086_MomentsFollowNamesWhateverTheOrderOfGroups) {
  const TemporaryDirectory directory;
  const auto grouped = [](bool reversed) {
    return [reversed](std::vector<at::Tensor> parameters) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::size_t place = reversed ? parameters.size() - 1 - i : i;
        groups.emplace_back(
            std::vector<at::Tensor>{parameters[place]},
            std::make_unique<torch::optim::AdamOptions>(1e-2 * static_cast<double>(place + 1)));
      }
      return std::make_shared<torch::optim::Adam>(groups);
    };
  };
  run_threads(2, [&](World world) {
    CheckpointedRun whole(odd_mlp(), world, test_options({}), grouped(false));
    whole.train(kSteps);
    whole.save(directory.path(), kSteps);
    whole.train(kSteps);
    CheckpointedRun other(odd_mlp(), world, test_options({}), grouped(world.rank() == 1));
    other.load(directory.path());
    other.train(kSteps);
    expect_same_bits(other.snapshot(), whole.snapshot());
  });
}

TEST(CheckpointTest, Fault098_OtherUnitsAndAlignmentHoldTheSameBits) {
  const TemporaryDirectory directory;
  Snapshot expected;
  run_threads(4, [&](World world) {
    CheckpointedRun run(tiny_gpt(true), world, test_options(units_larger_than(1), 0), adam());
    run.train(2);
    run.save(directory.path(), 2);
    const Snapshot snapshot = run.snapshot();
    if (world.rank() == 0) {
      expected = snapshot;
    }
  });
  for (const std::int64_t align : {0, 128}) {
    run_threads(3, [&](World world) {
      CheckpointedRun run(tiny_gpt(true), world, test_options(Units{}, align), adam());
      run.load(directory.path());
      const Snapshot actual = run.snapshot();
      if (world.rank() == 0) {
        expect_same_bits(actual, expected);
      }
    });
  }
}

TEST(CheckpointTest, WeightsInSharedMemoryAreLoadedInStep) {
  const TemporaryDirectory directory;
  run_threads(3, [&](World world) {
    Options options = test_options({});
    options.debug.poison_freed = false;
    options.memory.store = Store::kAliased;
    CheckpointedRun whole(rows({1, 2, 6}), world, options, adam());  // some ranks hold nothing
    whole.train(2);
    whole.save(directory.path(), 2);
    whole.train(2);
    const Snapshot expected = whole.snapshot();
    whole.train(1);
    whole.load(directory.path());
    whole.train(2);
    expect_same_bits(whole.snapshot(), expected);
  });
}

TEST(CheckpointTest, Fault059_RowsThatDoNotDivideReachTheFileWithoutPadding) {
  for (int ranks : {1, 2, 5, 8}) {
    const TemporaryDirectory directory;
    save_after_training(rows({1, 2, 3, 5, 7, 9, 10}), ranks, directory.path(), adam(), 128);
    const archive::Checkpoint saved(archive::resolve_checkpoint(directory.path()));
    std::int64_t elements = 0;
    for (const archive::Tensor& tensor : saved.index().tensors) {
      elements += tensor.section == archive::Section::kModel ? archive::numel(tensor.shape) : 0;
    }
    EXPECT_EQ(elements, 37);
    for (const archive::StoredFile& file : saved.index().files) {
      if (file.name == "model.safetensors") {
        EXPECT_EQ(file.bytes - file.head_bytes, 37 * 8);
      }
    }
  }
}

TEST(CheckpointTest, Fault060_TheGlobalShapeIsStored) {
  const TemporaryDirectory directory;
  save_after_training(rows({5}), 2, directory.path());
  const archive::Checkpoint saved(archive::resolve_checkpoint(directory.path()));
  for (const archive::Tensor& tensor : saved.index().tensors) {
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{5, 1})) << tensor.name;
  }
}

TEST(CheckpointTest, Fault061_MoreRanksThanRows) {
  const TemporaryDirectory directory;
  const Snapshot expected = parameters_only(train_reference(rows({1, 6}), 1, adam(), 3 * kSteps));
  save_after_training(rows({1, 6}), 8, directory.path());
  for (int ranks : {3, 8}) {
    run_threads(ranks, [&](World world) {
      CheckpointedRun run(rows({1, 6}), world, test_options({}), adam());
      const auto report = run.load(directory.path());
      run.train(kSteps);
      run.save(directory.path(), report.step + kSteps);
      const Snapshot actual = run.snapshot();
      if (ranks == 8 && world.rank() == 0) {
        expect_parity(actual, expected);
      }
    });
  }
}

/// A head that is the embedding's weight; or, untied, one of its own.
struct Tied : torch::nn::Module {
  explicit Tied(bool tied)
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        head(register_module("head",
                             torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)))) {
    if (tied) {
      tie_weights(*embedding, "weight", *head, "weight");
    }
    to(torch::kDouble);
  }
  at::Tensor loss() { return head(embedding(torch::arange(11))).square().sum(); }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};

Sharded shard(const std::shared_ptr<Tied>& model, const World& world) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(model), world, test_options({}));
}

TEST(CheckpointTest, Fault035_ATiedWeightIsStoredOnceAndFoundByBothNames) {
  const TemporaryDirectory directory;
  at::Tensor expected;
  run_threads(3, [&](World world) {
    const auto model = std::make_shared<Tied>(true);
    Sharded sharded = shard(model, world);
    auto optimizer = adam()(sharded.parameters());
    model->loss().backward();
    optimizer->step();
    checkpoint::Saver saver(directory.path(), sharded, checkpoint::state_of(*optimizer, sharded));
    saver.save(1);
    saver.wait();
    const FullParameters full = sharded.full_parameters();
    if (world.rank() == 0) {
      expected = model->embedding->weight.detach().clone();
    }
  });
  const archive::Checkpoint saved(archive::resolve_checkpoint(directory.path()));
  EXPECT_EQ(saved.index().aliases,
            (std::map<std::string, std::string>{{"head.weight", "embedding.weight"}}));
  EXPECT_EQ(saved.index().find(archive::Section::kModel, "embedding.weight")->bytes, 11 * 6 * 8);
  EXPECT_EQ(saved.index().find(archive::Section::kModel, "head.weight"), nullptr);
  for (int ranks : {1, 2, 5}) {
    // An untied module asks for both names: either comes from the one that is stored.
    for (const bool tied : {true, false}) {
      run_threads(ranks, [&](World world) {
        const auto model = std::make_shared<Tied>(tied);
        Sharded sharded = shard(model, world);
        auto optimizer = adam()(sharded.parameters());
        const auto state = checkpoint::state_of(*optimizer, sharded);
        checkpoint::load(directory.path(), sharded, state.get());
        // So does its state: moments that one name kept and the other lost would train apart.
        std::map<std::string, std::int64_t> steps{{"embedding.weight", 1}};
        if (!tied) {
          steps["head.weight"] = 1;
        }
        EXPECT_EQ(state->steps(), steps);
        for (const checkpoint::StateShard& shard : state->shards()) {
          EXPECT_TRUE(shard.values.numel() == 0 || shard.values.abs().max().item<double>() > 0)
              << shard.parameter << "." << shard.state;
        }
        const FullParameters full = sharded.full_parameters();
        EXPECT_TRUE(torch::equal(model->embedding->weight, expected));
        EXPECT_TRUE(torch::equal(model->head->weight, expected));
      });
    }
  }
}

TEST(CheckpointTest, ConvertsToThePrecisionThatIsThere) {
  const TemporaryDirectory directory;
  Snapshot expected;
  run_threads(2, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
    run.train(1);
    run.save(directory.path(), 1);
    const Snapshot snapshot = run.snapshot();
    if (world.rank() == 0) {
      expected = snapshot;
    }
  });
  run_threads(3, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, test_options({}), adam(), at::kFloat);
    run.load(directory.path());
    const Snapshot actual = run.snapshot();
    for (std::size_t i = 0; i < actual.parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual.parameters[i], expected.parameters[i].to(at::kFloat)));
    }
  });
}

TEST(CheckpointTest, Fault105_WhatIsChangedAfterSaveReturnsIsNotInTheFile) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    CheckpointedRun run(rows({100000}), world, test_options({}), adam());
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& shard : run.sharded.parameters()) {
      shard.fill_(1);
    }
    checkpoint::Saver saver(directory.path(), run.sharded);
    checkpoint::RunState state{.values = {{"data", {{"next", std::int64_t{3}}}}}};
    saver.save(1, state);
    state.values["data"]["next"] = std::int64_t{6};
    for (const at::Tensor& shard : run.sharded.parameters()) {
      shard.fill_(2);
    }
    saver.wait();
    const auto report = checkpoint::load(directory.path(), run.sharded);
    EXPECT_EQ(std::get<std::int64_t>(report.values.at("data").at("next")), 3);
    for (const at::Tensor& shard : run.sharded.parameters()) {
      EXPECT_TRUE(shard.eq(1).all().item<bool>());
    }
  });
}

TEST(CheckpointTest, Fault111_EachRankGoesOnWithItsOwnRandomNumbers) {
  const TemporaryDirectory directory;
  const auto stream = [](int seed) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    return generator.get_state();
  };
  run_threads(2, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
    run.save(directory.path(), 1, {.rng = stream(100 + world.rank())});
    EXPECT_TRUE(torch::equal(run.load(directory.path()).rng, stream(100 + world.rank())));
  });
  // At another world size: new streams, different by rank, the same in every load.
  std::vector<at::Tensor> first(3), second(3);
  for (std::vector<at::Tensor>* streams : {&first, &second}) {
    run_threads(3, [&](World world) {
      CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
      (*streams)[static_cast<std::size_t>(world.rank())] = run.load(directory.path()).rng;
    });
  }
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(torch::equal(first[rank], second[rank]));
    EXPECT_FALSE(torch::equal(first[rank], first[(rank + 1) % 3]));
  }
}

TEST(CheckpointTest, Fault112_OneRankUsesTheSameFiles) {
  const TemporaryDirectory one, four;
  save_after_training(odd_mlp(), 1, one.path());
  save_after_training(odd_mlp(), 4, four.path());
  const archive::Checkpoint first(archive::resolve_checkpoint(one.path()));
  const archive::Checkpoint second(archive::resolve_checkpoint(four.path()));
  ASSERT_EQ(first.index().tensors.size(), second.index().tensors.size());
  for (std::size_t i = 0; i < first.index().tensors.size(); ++i) {
    EXPECT_EQ(first.index().tensors[i].name, second.index().tensors[i].name);
    EXPECT_EQ(first.index().tensors[i].offset, second.index().tensors[i].offset);
  }
}

}  // namespace
}  // namespace fsdp::test
