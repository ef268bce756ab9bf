// SPDX-License-Identifier: Apache-2.0
/// Hyper-parameters that each rank sets for itself, and what becomes of those that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::AllOf;
using testing::HasSubstr;
namespace nn = torch::nn;

/// Two weights, whose gradients are ones.
struct Rows : nn::Module {
  Rows()
      : first(register_parameter("first", torch::zeros({2, 3}))),
        second(register_parameter("second", torch::zeros({4}))) {}
  at::Tensor loss() { return first.sum() + second.sum(); }
  at::Tensor first, second;
};

struct Sharding {
  explicit Sharding(const World& world)
      : model(std::make_shared<Rows>()), sharded(fully_shard(model, world, test_options({}))) {}
  void backward() {
    sharded.zero_grad();
    model->loss().backward();
  }
  std::shared_ptr<Rows> model;
  Sharded sharded;
};

/// A scheduler that looks at the rank's own loss: rows would move by 3.0 and by 2.1 in three steps.
TEST(Rates, Fault143_RatesThatDifferAreNamedAtTheNextBackwardOnAllRanks) {
  run_threads(2, [](World world) {
    Sharding of(world);
    optim::SGD optimizer(of.sharded, {.lr = 0.5});
    for (int step = 0; step < 2; ++step) {
      of.backward();
      optimizer.step();
      optimizer.options().lr *= 0.5;  // alike
    }
    optimizer.options().lr = world.rank() == 0 ? 1.0 : 0.7;
    EXPECT_THAT(
        error_of([&] { of.backward(); }),
        AllOf(HasSubstr("lr of the group of \"first\" in SGD is 1 on rank 0 and 0.7 on rank 1"),
              HasSubstr("mean_over_ranks")));
    world.recover();
    optimizer.options().lr = 1.0;
    of.backward();
    optimizer.step();
    const auto whole = of.sharded.full_parameters();
    EXPECT_TRUE(of.model->first.eq(-1.75).all().item<bool>());
  });
}

TEST(Rates, Fault143_GroupAndFieldAreThoseThatDiffer) {
  run_threads(3, [](World world) {
    Sharding of(world);
    optim::AdamW optimizer(of.sharded, {{.parameters = {"first"}, .options = {.lr = 0.1}},
                                        {.parameters = {"second"}, .options = {.lr = 0.1}}});
    of.backward();
    optimizer.options(1).weight_decay = world.rank() == 2 ? 0.25 : 0.125;
    EXPECT_THAT(error_of([&] { of.backward(); }),
                HasSubstr("weight_decay of the group of \"second\" in AdamW is 0.125 on rank 0 and "
                          "0.25 on rank 2"));
  });
}

TEST(Rates, Fault143_MuonsMomentumToo) {
  run_threads(2, [](World world) {
    Sharding of(world);
    optim::Muon optimizer(of.sharded, {}, {"second"});
    optimizer.options().momentum = world.rank() == 0 ? 0.5 : 0.75;
    EXPECT_THAT(error_of([&] { of.backward(); }),
                HasSubstr("momentum of the group of \"first\" in Muon is 0.5 on rank 0 and 0.75 on "
                          "rank 1"));
  });
}

TEST(Rates, Fault143_AnOptimizerThatOneRankAloneHasIsSaid) {
  run_threads(2, [](World world) {
    Sharding of(world);
    std::unique_ptr<optim::SGD> optimizer;
    if (world.rank() == 1) {
      optimizer = std::make_unique<optim::SGD>(of.sharded);
    }
    EXPECT_THAT(error_of([&] { of.backward(); }),
                HasSubstr("rank 0 has 0 hyper-parameters in its optimizers and rank 1 has 5"));
  });
}

/// As of a cosine that two machines round unequally; and what is gone is not compared.
TEST(Rates, Fault143_LastBitsAndOptimizersThatAreGoneDoNotCount) {
  run_threads(2, [](World world) {
    Sharding of(world);
    {
      optim::SGD gone(of.sharded, {.lr = 1.0 + world.rank()});
    }
    optim::SGD optimizer(of.sharded, {.lr = 0.1});
    if (world.rank() == 1) {
      optimizer.options().lr = std::nextafter(0.1, 1.0);
    }
    of.backward();
    optimizer.step();
  });
}

TEST(Rates, Fault143_LibTorchsOptimizersAreComparedWhenTheyAreSaved) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    Sharding of(world);
    torch::optim::SGD optimizer(of.sharded.parameters(), torch::optim::SGDOptions(0.1));
    checkpoint::Saver saver(directory.path(), of.sharded,
                            checkpoint::state_of(optimizer, of.sharded));
    of.backward();
    optimizer.step();
    auto& options =
        static_cast<torch::optim::SGDOptions&>(optimizer.param_groups().front().options());
    options.lr(world.rank() == 0 ? 1.0 : 0.7);
    EXPECT_THAT(error_of([&] { saver.save(1); }),
                HasSubstr("lr of the group of \"first\" in SGD is 1 on rank 0 and 0.7 on rank 1"));
  });
}

}  // namespace
