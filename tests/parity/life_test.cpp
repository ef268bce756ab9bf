// SPDX-License-Identifier: Apache-2.0
/// From sharding to the end of a Sharded: what is refused, what may end first, what errors leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/four_layers.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

TEST(Life, EndsInAnyOrderWithGathersInFlight) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    Options options = test_options(units_of<nn::Linear>(), 0, /*prefetch=*/2);
    options.memory.store = store;
    for (const bool sharded_first : {false, true}) {
      run_threads(2, [&](World world) {
        auto model = std::make_shared<FourLayers>();
        auto sharded = std::make_unique<Sharded>(fully_shard(model, world, options));
        model->loss(input(world.rank(), 0)).backward();
        at::Tensor y = model->layers[0](input(world.rank(), 1));  // the next unit is on its way
        if (sharded_first) {
          sharded.reset();
          EXPECT_THAT(error_of([&] { model->loss(y); }), HasSubstr("is gone"));
        }
        model.reset();
        y.reset();
        sharded.reset();
        // The ranks understand each other as before.
        model = std::make_shared<FourLayers>();
        const Sharded again = fully_shard(model, world, options);
        model->loss(input(world.rank(), 0)).backward();
        EXPECT_EQ(again.report().unsharded_numel, 0);
      });
    }
  }
}

TEST(Life, ShardingTwiceIsRefusedOnAllRanks) {
  run_threads(2, [](World world) {
    const auto model = std::make_shared<FourLayers>();
    auto sharded = std::make_unique<Sharded>(fully_shard(model, world, test_options({})));
    EXPECT_THAT(error_of([&] { fully_shard(model, world); }), HasSubstr("is sharded already"));
    std::vector<at::Tensor> copies;
    {
      const auto full = sharded->full_parameters();
      for (const at::Tensor& parameter : model->parameters()) {
        copies.push_back(parameter.detach().clone());
      }
    }
    sharded.reset();
    EXPECT_THAT(error_of([&] { fully_shard(model, world); }), HasSubstr("is sharded already"));
    for (std::size_t i = 0; i < copies.size(); ++i) {
      model->parameters()[i].set_data(std::exchange(copies[i], {}));
    }
    const Sharded again = fully_shard(model, world, test_options({}));
    model->loss(input(world.rank(), 0)).backward();
    EXPECT_TRUE(again.parameters()[0].grad().defined());
  });
}

TEST(Life, Fault149_AWholeOfShardedLayersSaysHowToNameUnits) {
  run_threads(1, [](World world) {
    torch::nn::Linear first(3, 3), second(3, 3);
    torch::nn::Sequential whole(first, second);
    const Sharded layer = fully_shard(first, world, test_options({}));
    EXPECT_THAT(error_of([&] { fully_shard(whole, world); }),
                HasSubstr("shard the whole once, Options::units says what is gathered together"));
  });
}

TEST(Life, ComplexParametersThatTrainAreRefusedAtOnce) {
  struct Complex : nn::Module {
    Complex() : weight(register_parameter("weight", torch::randn({3}, torch::kComplexFloat))) {}
    at::Tensor weight;
  };
  run_threads(2, [](World world) {
    EXPECT_THAT(error_of([&] { fully_shard(std::make_shared<Complex>(), world); }),
                HasSubstr("\"weight\" is ComplexFloat and requires grad"));
  });
}

TEST(Life, AViewAsParameterIsRefused) {
  struct View : nn::Module {
    View() : weight(register_parameter("weight", torch::randn({3, 2}).t())) {}
    at::Tensor weight;
  };
  run_threads(2, [](World world) {
    EXPECT_THAT(error_of([&] { fully_shard(std::make_shared<View>(), world); }),
                HasSubstr("\"weight\" is a view of another tensor"));
  });
}

TEST(Life, AnErrorWhileUnpinningIsThrownByTheNextTouch) {
  run_threads(2, [](World world) {
    const auto model = std::make_shared<FourLayers>();
    Options options = test_options(units_of<nn::Linear>());
    bool fails = false;
    options.debug.observer = [&](const trace::Event& event) {
      if (fails && event.kind == trace::EventKind::kFree) {
        throw std::runtime_error("the observer failed");
      }
    };
    const Sharded sharded = fully_shard(model, world, options);
    model->loss(input(world.rank(), 0)).backward();
    model->loss(input(world.rank(), 0)).backward();
    fails = true;
    // Its last touch in a known order: the unit is freed as the operator ends, in a destructor.
    EXPECT_EQ(error_of([&] { model->layers[0](input(world.rank(), 0)); }), "no error");
    EXPECT_THAT(error_of([&] { model->layers[1](input(world.rank(), 0)); }),
                HasSubstr("the observer failed"));
  });
}

}  // namespace
