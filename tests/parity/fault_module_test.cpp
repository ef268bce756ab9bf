// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems with modules and their use, by their number in docs/reference/faults.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/engine/shard_access.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

TEST(FaultModule, Fault005_OtherShapesAreRefusedOnAllRanks) {
  for (const auto& result : run_processes(2, "shapes", [](int rank) {
         const World world = init();
         nn::Sequential model(nn::Linear(4, rank == 1 ? 4 : 5));
         const std::string error = error_of([&] { fully_shard(model, world); });
         EXPECT_THAT(error, HasSubstr("mismatch"));
         EXPECT_THAT(error, HasSubstr("0.weight"));
         EXPECT_THAT(error, HasSubstr("[5, 4]"));
         EXPECT_THAT(error, HasSubstr("[4, 4]"));
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(FaultModule, Fault006_OtherDtypesAreRefusedOnAllRanks) {
  run_threads(3, [](World world) {
    nn::Sequential model(nn::Linear(4, 4));
    if (world.rank() == 2) {
      model->to(torch::kDouble);
    }
    const std::string error = error_of([&] { fully_shard(model, world); });
    EXPECT_THAT(error, HasSubstr("\"0.weight\""));
    EXPECT_THAT(error, HasSubstr("Float"));
    EXPECT_THAT(error, HasSubstr("Double"));
    EXPECT_THAT(error, HasSubstr("rank 2"));
  });
}

struct ThreeUnits : nn::Module {
  ThreeUnits() {
    for (const char* name : {"a", "b", "c"}) {
      layers.push_back(register_module(name, nn::Linear(4, 4)));
    }
  }
  at::Tensor forward(at::Tensor x, const std::string& order) {
    for (char which : order) {
      x = torch::tanh(layers[static_cast<std::size_t>(which - 'A')](x));
    }
    return x;
  }
  std::vector<nn::Linear> layers;
};

TEST(FaultModule, Fault012_ExecutionOrderMayChangeBetweenSteps) {
  const std::vector<std::string> orders = {"ABC", "ABC", "ABC", "ACB", "AC", "ABC"};
  torch::manual_seed(3);
  auto reference = std::make_shared<ThreeUnits>();
  reference->to(torch::kDouble);
  std::vector<at::Tensor> initial;
  for (const at::Tensor& parameter : reference->parameters()) {
    initial.push_back(parameter.detach().clone());
  }
  const at::Tensor x = torch::randn({4, 4}, torch::kDouble);
  torch::optim::SGD optimizer(reference->parameters(), torch::optim::SGDOptions(0.1));
  std::vector<double> losses;
  for (const std::string& order : orders) {
    optimizer.zero_grad();
    const at::Tensor loss = reference->forward(x, order).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  run_threads(2, [&](World world) {
    auto model = std::make_shared<ThreeUnits>();
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < initial.size(); ++i) {
        model->parameters()[i].copy_(initial[i]);
      }
    }
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    torch::optim::SGD own(sharded.parameters(), torch::optim::SGDOptions(0.1));
    // A miss is a touch that opens an interval which is not the next one recorded. The input needs
    // no gradient, so A is not touched in backward: that is C, B after ABC. ACB then misses by C
    // and B, and by B and C in backward; AC by C in backward, where B was first; and ABC by B,
    // which is not in AC, by C, which was to come after A, and by B in backward.
    const std::vector<std::int64_t> misses = {0, 0, 0, 4, 1, 3};
    for (std::size_t step = 0; step < orders.size(); ++step) {
      sharded.reset_counters();
      own.zero_grad();
      const at::Tensor loss =
          model->forward(x.chunk(2)[world.rank()], orders[step]).square().mean();
      loss.backward();
      own.step();
      at::Tensor mean = loss.detach().clone().view({1});
      world.transport().all_reduce(mean, {.name = "loss"});
      EXPECT_NEAR(mean.item<double>() / 2, losses[step], 1e-12) << step;
      EXPECT_EQ(sharded.report().counters.prefetch_misses, misses[step]) << step;
      EXPECT_EQ(sharded.report().unsharded_numel, 0) << step;
    }
  });
}

TEST(FaultModule, Fault033_TiedWeightsOfTwoUnitsAreOneShard) {
  struct Tied : nn::Module {
    Tied()
        : embedding(register_module("embedding", nn::Embedding(11, 6))),
          middle(register_module("middle", nn::Linear(6, 6))),
          head(register_module("head", nn::Linear(nn::LinearOptions(6, 11).bias(false)))) {
      tie_weights(*embedding, "weight", *head, "weight");
    }
    at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(middle(embedding(x)))); }
    nn::Embedding embedding;
    nn::Linear middle, head;
  };
  const at::Tensor tokens = torch::randint(0, 11, {8}, torch::kLong);
  const auto train = [&](Tied& model, std::vector<at::Tensor> parameters, const at::Tensor& x) {
    torch::optim::SGD optimizer(std::move(parameters), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      nn::functional::cross_entropy(model.forward(x), x).backward();
      optimizer.step();
    }
  };
  torch::manual_seed(5);
  auto reference = std::make_shared<Tied>();
  reference->to(torch::kDouble);
  // module->to() keeps the two names on one tensor.
  const at::Tensor initial = reference->embedding->weight.detach().clone();
  const at::Tensor initial_middle = reference->middle->weight.detach().clone();
  const at::Tensor initial_bias = reference->middle->bias.detach().clone();
  train(*reference,
        {reference->embedding->weight, reference->middle->weight, reference->middle->bias}, tokens);
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Tied>();
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      model->embedding->weight.copy_(initial);
      model->middle->weight.copy_(initial_middle);
      model->middle->bias.copy_(initial_bias);
    }
    Sharded sharded =
        fully_shard(model, world, test_options(units_matching("embedding|head|middle")));
    EXPECT_EQ(sharded.parameters().size(), 3u);
    EXPECT_EQ(sharded.named_parameters()[0].aliases, std::vector<std::string>{"head.weight"});
    train(*model, sharded.parameters(), tokens.chunk(2)[world.rank()]);
    const auto full = sharded.full_parameters();
    EXPECT_TRUE(torch::equal(model->embedding->weight, model->head->weight));
    EXPECT_LE((model->embedding->weight - reference->embedding->weight).abs().max().item<double>(),
              1e-12);
  });
}

struct Pair : nn::Module {
  Pair() : a(register_module("a", nn::Linear(4, 4))), b(register_module("b", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return b(torch::tanh(a(x))); }
  nn::Linear a, b;
};

TEST(FaultModule, Fault034_AssigningAMemberIsNotATie) {
  run_threads(2, [](World world) {
    auto assigned = std::make_shared<Pair>();
    assigned->b->weight = assigned->a->weight;
    const std::string error = error_of([&] { fully_shard(assigned, world); });
    EXPECT_THAT(error, HasSubstr("a.weight"));
    EXPECT_THAT(error, HasSubstr("b.weight"));
    EXPECT_THAT(error, HasSubstr("fsdp::tie_weights"));

    auto tied = std::make_shared<Pair>();
    tie_weights(*tied->a, "weight", *tied->b, "weight");
    Sharded sharded = fully_shard(tied, world, test_options(units_of<nn::Linear>()));
    EXPECT_EQ(sharded.parameters().size(), 3u);
    tied->forward(torch::ones({2, 4})).sum().backward();
    EXPECT_TRUE(sharded.parameters()[0].grad().defined());
  });
}

TEST(FaultModule, Fault034_ARegisteredParameterThatNothingUsesIsFoundInTheFirstStep) {
  struct Custom : nn::Module {
    Custom() : weight(register_parameter("weight", torch::ones({4}))) {}
    at::Tensor weight;
  };
  struct Model : nn::Module {
    Model()
        : a(register_module("a", std::make_shared<Custom>())),
          b(register_module("b", std::make_shared<Custom>())) {
      b->weight = a->weight;
    }
    at::Tensor forward() { return (a->weight * b->weight).sum(); }
    std::shared_ptr<Custom> a, b;
  };
  run_threads(2, [](World world) {
    auto model = std::make_shared<Model>();
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_THAT(error_of([&] { model->forward().backward(); }), HasSubstr("\"b.weight\""));
  });
}

TEST(FaultModule, Fault047_WeightsMayBeUsedAnywhere) {
  torch::manual_seed(2);
  auto reference = std::make_shared<Pair>();
  reference->to(torch::kDouble);
  const at::Tensor x = torch::randn({4, 4}, torch::kDouble);
  const auto loss_of = [](Pair& model, const at::Tensor& input) {
    const at::Tensor y = torch::matmul(input, model.b->weight);
    return model.forward(y).square().mean() + 0.1 * model.a->weight.square().sum();
  };
  loss_of(*reference, x).backward();
  run_threads(2, [&](World world) {
    auto model = std::make_shared<Pair>();
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 4; ++i) {
        model->parameters()[i].copy_(reference->parameters()[i]);
      }
    }
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    for (int step = 0; step < 2; ++step) {
      sharded.zero_grad();
      loss_of(*model, x.chunk(2)[world.rank()]).backward();
      const auto gradients = whole_gradients(sharded);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_LE((gradients[i] - reference->parameters()[i].grad()).abs().max().item<double>(),
                  1e-12);
      }
    }
    EXPECT_THAT(error_of([&] { model->a->weight.data_ptr(); }), HasSubstr("\"a.weight\""));
    const auto full = sharded.full_parameters();
    const auto* raw = static_cast<const double*>(model->a->weight.data_ptr());
    EXPECT_EQ(raw[0], reference->a->weight[0][0].item<double>());
  });
}

TEST(FaultModule, Fault048_AFreedWeightIsNeverReadAsSomethingElse) {
  run_threads(2, [](World world) {
    nn::LayerNorm model(nn::LayerNormOptions({4}));
    {
      torch::NoGradGuard no_grad;
      model->weight.copy_(torch::tensor({1.F, 2.F, 3.F, 4.F}));
    }
    const at::Tensor expected = torch::tensor({1.F, 2.F, 3.F, 4.F});
    Sharded sharded = fully_shard(model, world, test_options({}));
    torch::NoGradGuard no_grad;
    sharded.reshard();
    EXPECT_TRUE(torch::equal(torch::ones({2, 1}) * model->weight, expected.expand({2, 4})));
    sharded.reshard();
    EXPECT_TRUE(torch::equal(torch::zeros({2, 4}) + model->weight, expected.expand({2, 4})));
    sharded.reshard();
    const at::Tensor x = torch::randn({2, 4});
    EXPECT_TRUE(torch::equal(torch::layer_norm(x, {4}, model->weight, model->bias),
                             torch::layer_norm(x, {4}, expected, torch::zeros({4}))));
    sharded.reshard();
    EXPECT_THAT(error_of([&] { model->weight.data_ptr<float>(); }), HasSubstr("\"weight\""));
    EXPECT_THAT(error_of([&] { model->weight.storage().data(); }), HasSubstr("\"weight\""));
  });
}

TEST(FaultModule, Fault049_AnyMemberFunctionMayRun) {
  struct Model : Pair {
    at::Tensor encode(const at::Tensor& x) { return a(x); }
    at::Tensor generate(at::Tensor x) {
      for (int i = 0; i < 3; ++i) {
        x = forward(x);
      }
      return x;
    }
  };
  torch::manual_seed(9);
  auto reference = std::make_shared<Model>();
  const at::Tensor x = torch::randn({2, 4});
  run_threads(4, [&](World world) {
    auto model = std::make_shared<Model>();
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 4; ++i) {
        model->parameters()[i].copy_(reference->parameters()[i]);
      }
    }
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    torch::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(model->encode(x), reference->encode(x)));
      EXPECT_TRUE(torch::equal(model->generate(x), reference->generate(x)));
    }
    sharded.reshard();
    EXPECT_EQ(sharded.report().unsharded_numel, 0);
  });
}

TEST(FaultModule, Fault050_EvaluationLeavesNoTrace) {
  torch::manual_seed(4);
  Chain reference(3, 4);
  reference->to(torch::kDouble);
  std::vector<at::Tensor> initial;
  for (const at::Tensor& parameter : reference->parameters()) {
    initial.push_back(parameter.detach().clone());
  }
  const at::Tensor x = torch::randn({4, 4}, torch::kDouble);
  const std::string program = "EEETET";
  std::vector<double> losses;
  {
    torch::optim::SGD optimizer(reference->parameters(), torch::optim::SGDOptions(0.1));
    for (char what : program) {
      torch::AutoGradMode mode(what == 'T');
      // The same sums as two ranks make: halves first, then their mean.
      const at::Tensor halves = (reference->forward(x.narrow(0, 0, 2)).square().mean() +
                                 reference->forward(x.narrow(0, 2, 2)).square().mean()) /
                                2;
      losses.push_back(halves.item<double>());
      if (what == 'T') {
        optimizer.zero_grad();
        halves.backward();
        optimizer.step();
      }
    }
  }
  run_threads(2, [&](World world) {
    Chain model(3, 4);
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < initial.size(); ++i) {
        model->parameters()[i].copy_(initial[i]);
      }
    }
    Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1));
    int evaluations = 0;
    for (std::size_t i = 0; i < program.size(); ++i) {
      torch::AutoGradMode mode(program[i] == 'T');
      const at::Tensor loss = model->forward(x.chunk(2)[world.rank()]).square().mean();
      if (program[i] == 'T') {
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
      } else if (++evaluations == 1) {
        // Nothing foretells the end of the very first evaluation: one call says it.
        sharded.reshard();
      }
      EXPECT_EQ(sharded.report().unsharded_numel, 0) << i;
      at::Tensor sum = loss.detach().clone().view({1});
      world.transport().all_reduce(sum, {.name = "loss"});
      EXPECT_NEAR(sum.item<double>() / 2, losses[i], 1e-15) << i;
    }
  });
}

TEST(FaultModule, Fault057_ARootWithoutParametersIsFine) {
  run_threads(2, [](World world) {
    nn::Sequential model(nn::Linear(3, 3), nn::Linear(3, 3), nn::Linear(3, 3));
    int ends = 0;
    Options options = test_options(units_of<nn::Linear>());
    options.debug.observer = [&](const trace::Event& event) {
      ends += event.kind == trace::EventKind::kBackwardEnd ? 1 : 0;
    };
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(sharded.report().units.size(), 3u);
    for (int step = 1; step <= 3; ++step) {
      model->forward(torch::ones({2, 3})).sum().backward();
      EXPECT_EQ(ends, step);
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
    }
  });
}

TEST(FaultModule, Fault082_AnOptimizerInAnyOrderTrainsOrIsRefused) {
  run_threads(2, [](World world) {
    const auto train = [&](auto& model, torch::optim::Optimizer& optimizer) {
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        model->forward(torch::ones({2, 4})).sum().backward();
        optimizer.step();
      }
    };
    {  // on the shards: right
      Chain model(1, 4);
      Sharded sharded = fully_shard(model, world, test_options(chain_units()));
      torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1));
      const at::Tensor before = sharded.shard_access()->flats()[0].shard.clone();
      train(model, optimizer);
      EXPECT_FALSE(torch::equal(before, sharded.shard_access()->flats()[0].shard));
    }
    {  // on the module before sharding
      Chain model(1, 4);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
      Sharded sharded = fully_shard(model, world, test_options(chain_units()));
      EXPECT_THAT(error_of([&] { train(model, optimizer); }), HasSubstr("sharded.parameters()"));
    }
    {  // on the module after sharding
      Chain model(1, 4);
      Sharded sharded = fully_shard(model, world, test_options(chain_units()));
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      EXPECT_THAT(error_of([&] { train(model, optimizer); }), HasSubstr("sharded.parameters()"));
    }
    {  // on the module after a forward
      Chain model(1, 4);
      Sharded sharded = fully_shard(model, world, test_options(chain_units()));
      model->forward(torch::ones({2, 4}));
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      EXPECT_THAT(error_of([&] { train(model, optimizer); }), HasSubstr("sharded.parameters()"));
    }
  });
}

}  // namespace
