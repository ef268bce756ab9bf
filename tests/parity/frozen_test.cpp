// SPDX-License-Identifier: Apache-2.0
/// Parameters that do not train, or not now, or not here: what they cost, and that nobody notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/twins.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using memory::Kind;
namespace nn = torch::nn;

/// An adapter beside a weight that does not train, as in LoRA.
struct Adapted : nn::Module {
  Adapted()
      : base(register_parameter("base", torch::randn({100, 10}), /*requires_grad=*/false)),
        adapter(register_parameter("adapter", torch::randn({10, 2}))) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(base).matmul(adapter); }
  at::Tensor base, adapter;
};

TEST(Frozen, Fault037_OnlyTrainableElementsAreCollectedReducedAndHeld) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Adapted>();
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_EQ(sharded.report().live[Kind::kGradShards], 4 * 20 / 4);
    EXPECT_EQ(sharded.report().live[Kind::kReduceBuffers], 4 * 20);
    EXPECT_EQ(sharded.report().promise[Kind::kMoments], 2 * 4 * 20 / 4);
    // One bundle: the slot holds the frozen weights, then at a multiple of 128 bytes the others.
    EXPECT_EQ(sharded.report().live[Kind::kGatherSlots], 2 * (4096 + 4 * 20));
    optim::AdamW optimizer(sharded);
    for (int step = 0; step < 3; ++step) {
      sharded.reset_counters();
      optimizer.zero_grad();
      model->forward(torch::ones({2, 100})).sum().backward();
      optimizer.step();
      EXPECT_EQ(sharded.report().counters.reduce_scatters, 1);
      EXPECT_EQ(sharded.report().counters.reduce_bytes, 4 * 20);
      EXPECT_EQ(sharded.report().counters.padding_bytes, 0);
      // Both parts are gathered for forward; backward takes the adapter alone, which is still
      // there.
      EXPECT_EQ(sharded.report().counters.gather_bytes, 4 * 1020);
    }
    EXPECT_EQ(sharded.report().peak, sharded.report().promise);
    EXPECT_FALSE(sharded.parameters()[0].grad().defined());
  });
}

TEST(Frozen, Fault037_AnAdapterTrainsAsInOneProcess) {
  expect_twins<Adapted>({.ranks = 4, .loss = [](Adapted& model, int step, int rank) {
                           return model.forward(batch(100, step, rank)).square().mean();
                         }});
}

TEST(Frozen, Fault038_FrozenUnitsAreFreedWhenTheirInputGradientsAreDone) {
  run_threads(2, [](World world) {
    Chain model(7, 4);
    for (int i = 0; i < 7; ++i) {
      for (at::Tensor& parameter : model->links[static_cast<std::size_t>(i)]->parameters()) {
        parameter.set_requires_grad(false);
      }
    }
    std::set<int> live;
    std::size_t most = 0;
    Options options = test_options(chain_units());
    options.memory.extra_slots = 8;  // slots do not bound it
    options.debug.observer = [&](const trace::Event& event) {
      if (event.kind == trace::EventKind::kGatherStart) {
        live.insert(event.unit);
        most = std::max(most, live.size());
      } else if (event.kind == trace::EventKind::kFree) {
        live.erase(event.unit);
      }
    };
    Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = model->forward(torch::ones({2, 4})).sum();
      most = 0;
      loss.backward();
      EXPECT_LE(most, 2u) << "step " << step;
      EXPECT_TRUE(live.empty());
      sharded.zero_grad();
    }
  });
}

/// A frozen unit of two inputs, one of which it ignores.
struct Ignoring : nn::Module {
  Ignoring()
      : first(register_module("first", nn::Linear(4, 4))),
        frozen(register_module("frozen", nn::Linear(4, 4))) {
    for (at::Tensor& parameter : frozen->parameters()) {
      parameter.set_requires_grad(false);
    }
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& /*ignored*/) {
    return frozen(torch::tanh(first(x)));
  }
  nn::Linear first, frozen;
};

TEST(Frozen, Fault039_AnInputThatAFrozenUnitIgnoresGetsNoGradient) {
  expect_twins<Ignoring>({.options = test_options(units_of<nn::Linear>()),
                          .loss = [](Ignoring& model, int step, int rank) {
                            const at::Tensor ignored =
                                torch::ones({3, 4}, torch::kDouble).requires_grad_();
                            at::Tensor loss =
                                model.forward(batch(4, step, rank), ignored).square().mean();
                            EXPECT_FALSE(ignored.grad().defined());
                            return loss;
                          }});
}

struct Layers : nn::Module {
  Layers()
      : a(register_module("a", nn::Linear(4, 4))),
        b(register_module("b", nn::Linear(4, 4))),
        c(register_module("c", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return c(torch::tanh(b(torch::tanh(a(x))))); }
  nn::Linear a, b, c;
};

void freeze(const nn::Linear& layer, bool is_frozen) {
  for (at::Tensor& parameter : layer->parameters()) {
    parameter.set_requires_grad(!is_frozen);
  }
}

class FreezeLater : public testing::TestWithParam<std::string> {
 protected:
  /// A unit of its own, or a part of the root.
  Units units() const { return GetParam() == "unit" ? units_of<nn::Linear>() : Units(); }
};

TEST_P(FreezeLater, Fault040_FreezingAndUnfreezingTakesEffectAtTheNextStep) {
  const std::vector<bool> is_frozen = {true, true, false, false, true};
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    Options options = test_options(units());
    options.memory.store = store;
    std::vector<std::vector<at::Tensor>> before(2);
    expect_twins<Layers>(
        {.steps = 5,
         .options = options,
         .loss = [](Layers& model, int step,
                    int rank) { return model.forward(batch(4, step, rank)).square().mean(); },
         .before = [&](Layers& model,
                       int step) { freeze(model.b, is_frozen[static_cast<std::size_t>(step)]); },
         .after =
             [&](Sharded& sharded, torch::optim::AdamW& optimizer, int step) {
               auto& known = before[static_cast<std::size_t>(sharded.world().rank())];
               const std::vector<at::Tensor> shards = sharded.parameters();
               for (std::size_t i : {2, 3}) {  // of b
                 if (step > 0 && is_frozen[static_cast<std::size_t>(step)]) {
                   EXPECT_TRUE(torch::equal(shards[i], known[i]));
                 }
                 const auto state = optimizer.state().find(shards[i].unsafeGetTensorImpl());
                 const std::int64_t counted =
                     state == optimizer.state().end()
                         ? 0
                         : static_cast<torch::optim::AdamWParamState&>(*state->second).step();
                 EXPECT_EQ(counted, std::clamp(step - 1, 0, 2));
               }
               known.clear();
               for (const at::Tensor& shard : shards) {
                 known.push_back(shard.detach().clone());
               }
             }});
  }
}

/// The way of programs that know their optimizer only.
TEST_P(FreezeLater, Fault142_FreezingWhatTheOptimizerHoldsTakesEffectAtTheNextStep) {
  const std::vector<bool> is_frozen = {false, true, true, false, true};
  for (const bool evaluates : {false, true}) {
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      Options options = test_options(units());
      options.memory.store = store;
      expect_twins<Layers>(
          {.steps = 5,
           .options = options,
           .loss = [](Layers& model, int step,
                      int rank) { return model.forward(batch(4, step, rank)).square().mean(); },
           .before = [&](Layers& model,
                         int step) { freeze(model.b, is_frozen[static_cast<std::size_t>(step)]); },
           .before_sharded =
               [&](Sharded& sharded, torch::optim::AdamW& optimizer, int step) {
                 std::vector<at::Tensor>& held = optimizer.param_groups().front().params();
                 for (std::size_t i : {2, 3}) {  // of b
                   held[i].requires_grad_(!is_frozen[static_cast<std::size_t>(step)]);
                 }
                 if (evaluates) {
                   const torch::NoGradGuard no_grad;
                   (void)(sharded.named_parameters()[2].parameter * 1.0);
                 }
               },
           .after =
               [&](Sharded& sharded, torch::optim::AdamW&, int step) {
                 for (std::size_t i : {2, 3}) {
                   const NamedShard of_b = sharded.named_parameters()[i];
                   EXPECT_EQ(of_b.parameter.requires_grad(),
                             !is_frozen[static_cast<std::size_t>(step)]);
                 }
               }});
    }
  }
}

/// Within one step, as of two forwards only the first trains a layer.
TEST_P(FreezeLater, Fault142_BetweenTwoForwardsOfOneStep) {
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Layers>();
    Sharded sharded = fully_shard(model, world, test_options(units()));
    const at::Tensor shard = sharded.parameters()[2];  // of b
    (void)model->forward(torch::ones({2, 4}));
    shard.requires_grad_(false);
    EXPECT_FALSE(model->b(torch::ones({2, 4})).requires_grad() && model->b->weight.requires_grad());
    EXPECT_FALSE(model->b->weight.requires_grad());
    shard.requires_grad_(true);
    (void)model->forward(torch::ones({2, 4}));
    EXPECT_TRUE(model->b->weight.requires_grad());
    model->b->weight.requires_grad_(false);
    (void)model->forward(torch::ones({2, 4}));
    EXPECT_FALSE(shard.requires_grad());
  });
}

TEST_P(FreezeLater, Fault142_AfterAForwardItsBackwardHasNoGradient) {
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Layers>();
    Sharded sharded = fully_shard(model, world, test_options(units()));
    for (const bool freezes_shard : {false, true}) {
      sharded.zero_grad();
      const at::Tensor loss = model->forward(torch::ones({2, 4})).sum();
      (freezes_shard ? sharded.parameters()[2] : model->b->weight).requires_grad_(false);
      loss.backward();
      EXPECT_FALSE(sharded.parameters()[2].grad().defined());
      EXPECT_TRUE(sharded.parameters()[3].grad().defined());
      model->b->weight.requires_grad_(true);
      (void)model->forward(torch::ones({2, 4}));
    }
  });
}

TEST_P(FreezeLater, Fault040_BuffersOfWhatTrainsLaterAreMadeThenAndPromised) {
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Layers>();
    freeze(model->b, true);
    Sharded sharded = fully_shard(model, world, test_options(units()));
    optim::AdamW optimizer(sharded, {.lr = 0.0});
    const auto step = [&] {
      optimizer.zero_grad();
      model->forward(torch::ones({2, 4})).sum().backward();
      optimizer.step();
    };
    step();
    const memory::Bytes first = sharded.report().promise;
    EXPECT_EQ(sharded.report().live, first);
    freeze(model->b, false);
    step();
    EXPECT_EQ(sharded.report().promise[Kind::kGradShards] - first[Kind::kGradShards], 4 * 20 / 2);
    EXPECT_EQ(sharded.report().promise[Kind::kMoments] - first[Kind::kMoments], 2 * 4 * 20 / 2);
    EXPECT_EQ(sharded.report().live, sharded.report().promise);
    const memory::Bytes second = sharded.report().promise;
    freeze(model->b, true);
    sharded.reset_counters();
    step();
    EXPECT_EQ(sharded.report().counters.reduce_bytes, 4 * 40)
        << "frozen again: nothing of it is reduced";
    EXPECT_EQ(sharded.report().promise, second) << "what is there stays";
  });
}

TEST(Freeze, Fault040_OnOneRankOnlyIsAnErrorOnAll) {
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Layers>();
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    freeze(model->b, world.rank() == 1);
    EXPECT_THROW(model->forward(torch::ones({2, 4})).sum().backward(), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Where, FreezeLater, testing::Values("unit", "root"),
                         [](const auto& tested) { return tested.param; });

TEST(Unused, Fault041_AUnitThatOnlySomeStepsUseHasAGradientInThoseOnly) {
  expect_twins<Layers>({.steps = 5,
                        .options = test_options(units_of<nn::Linear>()),
                        .loss = [](Layers& model, int step, int rank) {
                          at::Tensor x = torch::tanh(model.a(batch(4, step, rank)));
                          x = step % 2 == 1 ? model.b(x) : x;
                          return model.c(x).square().mean();
                        }});
}

TEST(Unused, Fault011_AParameterThatOneRankUsesHasAGradientOnAll) {
  const auto loss = [](Layers& model, int step, int rank) {
    at::Tensor x = torch::tanh(model.a(batch(4, step, rank)));
    x = rank == 0 && step > 0 ? model.b(x) : x;
    return model.c(x).square().mean();
  };
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    Options options = test_options({});
    options.memory.store = store;
    // Ranks touch it unequally often.
    options.rules.push_back({.units = root_unit(), .optional = true});
    expect_twins<Layers>({.options = options, .loss = loss});
  }
}

TEST(Unused, Fault042_AnOutputThatTheLossIgnoresLeavesItsHeadWithoutAGradient) {
  expect_twins<Layers>({.options = test_options(units_of<nn::Linear>()),
                        .loss = [](Layers& model, int step, int rank) {
                          const at::Tensor x = torch::tanh(model.a(batch(4, step, rank)));
                          const at::Tensor ignored = model.b(x);
                          return model.c(x).square().mean();
                        }});
}

}  // namespace
