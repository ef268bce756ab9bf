// SPDX-License-Identifier: Apache-2.0
/// What fully_shard makes of a module: units, shards, initial weights, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <set>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
namespace nn = torch::nn;

struct Layers : nn::Module {
  Layers() {
    register_module("0", nn::Linear(2, 3));
    auto inner = register_module("1", std::make_shared<nn::Module>());
    inner->register_module("0", nn::Linear(3, 30));
    inner->register_module("1", nn::Linear(30, 2));
  }
};

std::vector<std::string> unit_names(const Units& units) {
  std::vector<std::string> names;
  run_threads(1, [&](World world) {
    const auto model = std::make_shared<Layers>();
    for (const UnitInfo& unit : fully_shard(model, world, test_options(units)).report().units) {
      names.push_back(unit.name);
    }
  });
  return names;
}

TEST(Units, AreChosenByTypePatternListOrSize) {
  EXPECT_THAT(unit_names({}), ElementsAre("(root)"));
  EXPECT_THAT(unit_names(units_of<nn::Linear>()), ElementsAre("0", "1.0", "1.1"));
  EXPECT_THAT(unit_names(units_of<nn::LinearImpl>()), ElementsAre("0", "1.0", "1.1"));
  EXPECT_THAT(unit_names(units_matching("1\\.\\d")), ElementsAre("(root)", "1.0", "1.1"));
  EXPECT_THAT(unit_names(units_listed({"1"})), ElementsAre("(root)", "1"));
  EXPECT_THAT(unit_names(units_listed({"1", "1.0"})), ElementsAre("(root)", "1", "1.0"));
  // 1.0 has 120 elements, 1.1 has 62, 0 has 9: what is left of 1 is 62.
  EXPECT_THAT(unit_names(units_larger_than(100)), ElementsAre("(root)", "1.0"));
  EXPECT_THAT(unit_names(units_larger_than(62)), ElementsAre("(root)", "1.0", "1.1"));
}

TEST(Units, ANameThatDoesNotExistIsAnError) {
  EXPECT_THAT(error_of([] { unit_names(units_listed({"1.7"})); }), HasSubstr("\"1.7\""));
  EXPECT_THAT(error_of([] { units_matching("("); }), HasSubstr("not a regular expression"));
}

TEST(FullyShard, DividesEveryUnitEvenlyOverRanks) {
  for (int size : {1, 2, 3, 5, 7}) {
    std::mutex mutex;
    std::vector<std::int64_t> elements(4, 0);
    run_threads(size, [&](World world) {
      const Subject subject = make_subject(odd_mlp());
      Sharded sharded = subject.shard(world, test_options(subject.units));
      const auto parameters = sharded.named_parameters();
      ASSERT_EQ(parameters.size(), 4u);
      for (const UnitInfo& unit : sharded.report().units) {
        EXPECT_EQ(unit.padded_numel % size, 0);
        EXPECT_LT(unit.padded_numel - unit.numel, size);
        EXPECT_FALSE(unit.is_unsharded);
      }
      std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(parameters[i].shard.dim(), 1);
        EXPECT_TRUE(parameters[i].shard.is_leaf() && parameters[i].shard.requires_grad());
        elements[i] += parameters[i].shard.numel();
      }
    });
    EXPECT_THAT(elements, ElementsAre(35, 7, 21, 3));
  }
}

TEST(FullyShard, KeepsTheTensorsThatPeopleHold) {
  run_threads(2, [](World world) {
    nn::Linear linear(4, 4);
    const at::Tensor held = linear->weight;
    const c10::TensorImpl* identity = held.unsafeGetTensorImpl();
    Sharded sharded = fully_shard(linear, world, test_options({}));
    EXPECT_TRUE(sharded.is_sharded(held));
    EXPECT_FALSE(sharded.is_sharded(torch::ones({4, 4})));
    linear->forward(torch::ones({2, 4})).sum().backward();
    EXPECT_EQ(linear->weight.unsafeGetTensorImpl(), identity);
    EXPECT_EQ(held.sizes(), (std::vector<std::int64_t>{4, 4}));
  });
}

TEST(FullyShard, OddParametersTrain) {
  struct Odd : nn::Module {
    Odd()
        : scalar(register_parameter("scalar", torch::full({}, 2.0))),
          one(register_parameter("one", torch::ones({1}))),
          none(register_parameter("none", torch::ones({0, 3}))),
          turned(register_parameter("turned", torch::randn({4, 6}).t().clone())),
          image(register_parameter(
              "image", torch::randn({2, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast))) {}
    at::Tensor forward(const at::Tensor& x) {
      return (torch::matmul(x, turned) * scalar * one).sum() + image.square().sum() + none.sum();
    }
    at::Tensor scalar, one, none, turned, image;
  };
  for (int size : {1, 3, 8}) {
    std::mutex mutex;
    std::vector<at::Tensor> expected;
    std::vector<at::Tensor> values;
    run_threads(size, [&](World world) {
      std::shared_ptr<Odd> model;
      {
        std::lock_guard lock(mutex);
        torch::manual_seed(11);
        model = std::make_shared<Odd>();
        if (expected.empty()) {
          auto reference = std::make_shared<Odd>();
          torch::NoGradGuard no_grad;
          for (std::size_t i = 0; i < 5; ++i) {
            reference->parameters()[i].copy_(model->parameters()[i]);
            values.push_back(model->parameters()[i].detach().clone());
          }
          torch::AutoGradMode with_grad(true);
          reference->forward(torch::ones({2, 6})).backward();
          for (const at::Tensor& parameter : reference->parameters()) {
            expected.push_back(parameter.grad().clone());
          }
        }
      }
      Sharded sharded = fully_shard(model, world, test_options({}));
      for (std::size_t i = 0; i < 5; ++i) {
        const at::Tensor gathered = model->parameters()[i].detach().clone();
        EXPECT_TRUE(torch::equal(gathered, values[i])) << i;
        EXPECT_EQ(model->parameters()[i].strides(), values[i].strides()) << i;
      }
      model->forward(torch::ones({2, 6})).backward();
      for (std::size_t i = 0; i < 3; ++i) {
        // Contiguous ones: their pieces are ranges of the logical tensor.
        EXPECT_TRUE(torch::allclose(whole_gradients(sharded)[i], expected[i])) << i;
      }
      EXPECT_EQ(sharded.named_parameters()[0].sizes.size(), 0u);
    });
  }
}

TEST(InitialWeights, ComeFromRankZeroByDefault) {
  run_threads(3, [](World world) {
    nn::BatchNorm1d model(4);
    {
      torch::NoGradGuard no_grad;
      model->weight.fill_(world.rank() + 5.0);
      model->running_mean.fill_(world.rank() + 1.0);
    }
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_TRUE(torch::equal(model->weight.detach().clone(), torch::full({4}, 5.0)));
    EXPECT_TRUE(torch::equal(model->running_mean, torch::ones({4})));
  });
}

TEST(InitialWeights, OfBuffersComeFromRankZeroInAnyMemoryOrder) {
  run_threads(2, [](World world) {
    const auto model = std::make_shared<Layers>();
    const at::Tensor rows = torch::full({2, 3}, static_cast<double>(world.rank()));
    model->register_buffer("rows", rows);
    const at::Tensor columns = torch::full({3, 2}, static_cast<double>(world.rank())).t();
    model->register_buffer("columns", columns);
    fully_shard(model, world, test_options({}));
    EXPECT_EQ(rows.abs().sum().item<float>(), 0);
    EXPECT_EQ(columns.abs().sum().item<float>(), 0);
  });
}

TEST(FullyShard, WantsStridedParametersOnOneDevice) {
  run_threads(1, [](World world) {
    const auto model = std::make_shared<Layers>();
    model->register_parameter("elsewhere", torch::zeros({2}, torch::kMeta));
    EXPECT_THAT(error_of([&] { fully_shard(model, world, test_options({})); }),
                HasSubstr("one device a rank"));
    const auto sparse = std::make_shared<Layers>();
    sparse->register_parameter("sparse", torch::eye(2).to_sparse());
    EXPECT_THAT(error_of([&] { fully_shard(sparse, world, test_options({})); }),
                HasSubstr("not a strided tensor"));
  });
}

TEST(InitialWeights, AreCheckedInsteadWhenAsked) {
  run_threads(3, [](World world) {
    Options options = test_options({});
    options.initial_weights = InitialWeights::kCheckEqual;
    const auto shard = [&](double weight, double bias) {
      nn::Linear model(2, 2);
      torch::NoGradGuard no_grad;
      model->weight.fill_(weight);
      model->bias.fill_(bias);
      fully_shard(model, world, options);
    };
    EXPECT_EQ(error_of([&] { shard(1.0, 2.0); }), "no error");
    const std::string error = error_of([&] { shard(1.0, world.rank() == 2 ? 3.0 : 2.0); });
    EXPECT_THAT(error, HasSubstr("\"bias\""));
    EXPECT_THAT(error, HasSubstr("rank 2"));
  });
}

TEST(Slots, AnOperatorThatNeedsMoreUnitsThanSlotsNamesThem) {
  run_threads(2, [](World world) {
    nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
    std::vector<at::Tensor> weights;
    for (const auto& item : model->named_parameters()) {
      if (item.key().ends_with("weight")) {
        weights.push_back(item.value());
      }
    }
    Options options = test_options(units_of<nn::Linear>());
    Sharded sharded = fully_shard(model, world, options);
    const std::string error = error_of([&] { torch::cat(weights); });
    EXPECT_THAT(error, HasSubstr("aten::cat"));
    EXPECT_THAT(error, HasSubstr("\"0\", \"1\", \"2\""));
    EXPECT_THAT(error, HasSubstr("extra_slots to 1"));
    // Nothing has changed: what needs two at once still works.
    EXPECT_EQ(torch::cat({weights[0], weights[2]}).numel(), 8);
  });
  run_threads(2, [](World world) {
    nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
    Options options = test_options(units_of<nn::Linear>());
    options.memory.extra_slots = 1;
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(torch::cat({model->parameters()[0], model->parameters()[2], model->parameters()[4]})
                  .numel(),
              12);
  });
}

TEST(FullParameters, EditsReachTheShardsOnlyWithWriteback) {
  run_threads(3, [](World world) {
    nn::Linear model(3, 3);
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_THAT(error_of([&] {
                  torch::NoGradGuard no_grad;
                  model->weight.fill_(1.0);
                }),
                HasSubstr("\"weight\""));
    {
      const auto full = sharded.full_parameters(/*writeback=*/true);
      torch::NoGradGuard no_grad;
      model->weight.fill_(4.0);
    }
    EXPECT_EQ(sharded.report().unsharded_numel, 0);
    EXPECT_EQ(sharded.report().live[memory::Kind::kFullScope], 0);
    EXPECT_TRUE(torch::equal(model->weight.detach().clone(), torch::full({3, 3}, 4.0)));
  });
}

TEST(Determinism, RunsRepeatBitForBitWhateverThePrefetch) {
  std::vector<at::Tensor> first;
  for (const int prefetch : {1, 1, 0, 2}) {
    std::vector<at::Tensor> parameters;
    std::mutex mutex;
    run_threads(3, [&](World world) {
      const SubjectKind kind = tiny_gpt(true);
      Options options = test_options(make_subject(kind).units, 0, prefetch);
      if (prefetch == 2) {
        options.rules.push_back({.units = root_unit(), .keep_gathered = true});
      }
      const Snapshot snapshot = train_sharded(kind, world, options, adam(), 4, at::kFloat);
      std::lock_guard lock(mutex);
      if (world.rank() == 0) {
        parameters = snapshot.parameters;
      }
    });
    if (first.empty()) {
      first = parameters;
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(torch::equal(first[i], parameters[i])) << i << " prefetch " << prefetch;
    }
  }
}

TEST(Sharding, Fault147_UnitsThatFitNothingAreRefusedWithNearNames) {
  run_threads(1, [](World world) {
    const auto error_with = [&](const Options& options) {
      nn::Sequential model(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4));
      return error_of([&] { fully_shard(model, world, options); });
    };
    EXPECT_THAT(error_with(test_options(units_matching("layers\\.\\d"))),
                AllOf(HasSubstr("units matching \"layers\\.\\d\""),
                      HasSubstr("fit none of 3 modules"), HasSubstr("\"0\", \"1\", \"2\"")));
    EXPECT_THAT(error_with(test_options(units_of<nn::Conv2d>())),
                AllOf(HasSubstr("Conv2dImpl"), HasSubstr("fit none of 3 modules")));
    EXPECT_THAT(error_with(test_options(units_larger_than(1000))),
                HasSubstr("units of at least 1000 elements, which fit none"));
    const auto error_of_rule = [&](const Units& units) {
      Options options = test_options(units_of<nn::Linear>());
      options.rules = {{.units = root_unit(), .keep_gathered = true},
                       {.units = units, .keep_gathered = true}};
      return error_with(options);
    };
    EXPECT_THAT(error_of_rule(units_of<nn::Conv2d>()),
                AllOf(HasSubstr("Options::rules[1]"), HasSubstr("Conv2dImpl"),
                      HasSubstr("fits none of 2 units"), HasSubstr("\"0\""), HasSubstr("\"2\"")));
    EXPECT_THAT(error_of_rule(units_larger_than(1000)), HasSubstr("at least 1000 elements"));
    EXPECT_THAT(error_of_rule(units_matching("1")), HasSubstr("units matching \"1\""));
    // What fits the outermost module alone, and a list of none, are no slips.
    EXPECT_EQ(error_with(test_options(units_of<nn::Sequential>())), "no error");
    EXPECT_EQ(error_with(test_options(units_listed({}))), "no error");
    EXPECT_EQ(error_of_rule(units_of<nn::Linear>()), "no error");
  });
}

TEST(Sharding, Fault147_ANameThatIsNotThereIsAnsweredWithNearOnes) {
  run_threads(1, [](World world) {
    const auto error_with = [&](const std::function<void(Options & options)>& set) {
      nn::Sequential model(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4));
      Options options = test_options(units_listed({"0", "2"}));
      set(options);
      return error_of([&] { fully_shard(model, world, options); });
    };
    EXPECT_THAT(error_with([](Options& of) { of.units = units_listed({"0", "02"}); }),
                AllOf(HasSubstr("called \"02\""), HasSubstr("nearest are \"0\", \"2\", \"1\"")));
    EXPECT_THAT(error_with([](Options& of) { of.precision.full_precision = units_listed({"22"}); }),
                AllOf(HasSubstr("lists \"22\""), HasSubstr("nearest are \"2\"")));
    EXPECT_THAT(error_with([](Options& of) { of.ignore = {"2.wieght"}; }),
                HasSubstr("nearest are \"2.weight\""));
    EXPECT_THAT(error_with([](Options& of) { of.rules = {{.units = units_listed({"1"})}}; }),
                AllOf(HasSubstr("rules[0] lists \"1\""), HasSubstr("nearest are \"0\", \"2\"")));
    nn::Sequential model(nn::Linear(4, 4));
    const Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_THAT(error_of([&] { optim::WholeTensors(sharded, {"0.wieght"}); }),
                HasSubstr("nearest are \"0.weight\", \"0.bias\""));
  });
}

}  // namespace
