// SPDX-License-Identifier: Apache-2.0
/// The library's optimizers compute on shards what one process computes: LibTorch's where it has
/// the rule, else the rule written out here. Groups, counters and memory by their faults' numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/counting_allocator.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::ElementsAre;
using testing::HasSubstr;
namespace nn = torch::nn;

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using OwnFactory = std::function<std::unique_ptr<optim::FlatOptimizer>(const Sharded&)>;
/// Makes a function that takes one step of plain tensors.
using PlainFactory = std::function<std::function<void()>(const Named&)>;

struct RuleUnderTest {
  std::string name;
  SubjectKind subject;
  OwnFactory own;
  PlainFactory plain;
};

template <class Optimizer, class Options>
PlainFactory stock(Options options) {
  return [options](const Named& named) -> std::function<void()> {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : named) {
      parameters.push_back(tensor);
    }
    auto optimizer = std::make_shared<Optimizer>(parameters, options);
    return [optimizer] { optimizer->step(); };
  };
}

template <class Optimizer, class Options>
OwnFactory own(Options options) {
  return
      [options](const Sharded& sharded) { return std::make_unique<Optimizer>(sharded, options); };
}

/// Program 1 of the paper, line by line.
std::function<void()> plain_lion(const Named& named, optim::LionOptions options) {
  auto averages = std::make_shared<std::map<std::string, at::Tensor>>();
  return [=] {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, p] : named) {
      at::Tensor& m = averages->try_emplace(name, torch::zeros_like(p)).first->second;
      const at::Tensor g = p.grad();
      at::Tensor weight = p;
      const at::Tensor update = torch::sign(options.beta1 * m + (1 - options.beta1) * g);
      weight.sub_(options.lr * (update + options.weight_decay * p));
      m = options.beta2 * m + (1 - options.beta2) * g;
    }
  };
}

at::Tensor orthogonal(at::Tensor g, int iterations) {
  at::Tensor x = g.size(0) > g.size(1) ? g.t() : g;
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < iterations; ++i) {
    const at::Tensor a = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.matmul(a)).matmul(x);
  }
  return g.size(0) > g.size(1) ? x.t() : x;
}

/// Jordan's Muon for matrices, torch::optim::AdamW for the rest.
std::function<void()> plain_muon(const Named& named, optim::MuonOptions options,
                                 const std::string& by_adamw, optim::AdamWOptions others) {
  Named matrices, rest;
  for (const auto& item : named) {
    const bool is_matrix = item.second.dim() == 2 && !optim::matches(by_adamw, item.first);
    (is_matrix ? matrices : rest).push_back(item);
  }
  auto momenta = std::make_shared<std::map<std::string, at::Tensor>>();
  const auto adamw = stock<torch::optim::AdamW>(
      torch::optim::AdamWOptions(others.lr).eps(others.eps).weight_decay(others.weight_decay))(
      rest);
  return [=] {
    adamw();
    const torch::NoGradGuard no_grad;
    for (const auto& [name, p] : matrices) {
      at::Tensor& m = momenta->try_emplace(name, torch::zeros_like(p)).first->second;
      m = options.momentum * m + (1 - options.momentum) * p.grad();
      const at::Tensor update =
          options.nesterov ? (1 - options.momentum) * p.grad() + options.momentum * m : m;
      const auto rows = static_cast<double>(p.size(0)), columns = static_cast<double>(p.size(1));
      const double scale = options.scale == optim::MuonScale::kShape
                               ? std::sqrt(std::max(1.0, rows / columns))
                               : 0.2 * std::sqrt(std::max(rows, columns));
      at::Tensor weight = p;
      weight.mul_(1 - options.lr * options.weight_decay);
      weight.sub_(options.lr * scale * orthogonal(update, options.iterations));
    }
  };
}

RuleUnderTest muon_rule(const std::string& name, const SubjectKind& subject,
                        optim::MuonOptions options, const std::string& by_adamw) {
  const optim::AdamWOptions others{.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1};
  return {name, subject,
          [=](const Sharded& sharded) {
            return std::make_unique<optim::Muon>(sharded, options, std::vector{by_adamw}, others);
          },
          [=](const Named& named) { return plain_muon(named, options, by_adamw, others); }};
}

std::vector<RuleUnderTest> rules() {
  using optim::AdamWOptions, optim::SGDOptions;
  const optim::LionOptions lion{.lr = 3e-3, .weight_decay = 0.3};
  return {
      {"AdamW", tiny_gpt(true),
       own<optim::AdamW>(AdamWOptions{.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1}),
       stock<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1))},
      {"Sgd", nested_units(), own<optim::SGD>(SGDOptions{.lr = 0.05}),
       stock<torch::optim::SGD>(torch::optim::SGDOptions(0.05))},
      {"SgdNesterov", tiny_gpt(false),
       own<optim::SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true}),
       stock<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true))},
      {"SgdDampedAndDecayed", nested_units(),
       own<optim::SGD>(
           SGDOptions{.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1}),
       stock<torch::optim::SGD>(
           torch::optim::SGDOptions(0.05).momentum(0.8).dampening(0.3).weight_decay(0.1))},
      {"Lion", odd_mlp(), own<optim::Lion>(lion),
       [=](const Named& named) { return plain_lion(named, lion); }},
      muon_rule("Muon", tiny_gpt(true), {.lr = 0.02, .weight_decay = 0.1}, "w*"),
      muon_rule(
          "MuonAlone", odd_mlp(),
          {.lr = 0.02, .nesterov = false, .scale = optim::MuonScale::kMatchAdamW, .batch_bytes = 1},
          "*.bias"),
  };
}

Named named_parameters(const Subject& subject) {
  Named named;
  for (const auto& item : subject.module->named_parameters()) {
    const bool is_tied = std::any_of(named.begin(), named.end(), [&](const auto& known) {
      return known.second.is_same(item.value());
    });
    if (!is_tied) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

constexpr int kSteps = 5;

/// Trains alone and on ranks that shard as `options_of` says.
void expect_one_process(const RuleUnderTest& rule, int size,
                        const std::function<Options(const World&, const Units&)>& options_of) {
  Snapshot expected;
  {
    const Subject subject = make_subject(rule.subject);
    const Named named = named_parameters(subject);
    const auto step = rule.plain(named);
    for (int i = 0; i < kSteps; ++i) {
      subject.module->zero_grad();
      subject.loss_of(0, 1).backward();
      step();
    }
    for (const auto& [name, tensor] : named) {
      expected.parameters.push_back(tensor.detach().clone());
    }
  }
  std::mutex mutex;
  run_threads(size, [&](World world) {
    const Subject subject = make_subject(rule.subject);
    const Sharded sharded = subject.shard(world, options_of(world, subject.units));
    const auto optimizer = rule.own(sharded);
    for (int i = 0; i < kSteps; ++i) {
      optimizer->zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer->step();
    }
    EXPECT_EQ(optimizer->steps(), kSteps);
    EXPECT_THAT(optimizer->untrained(), testing::IsEmpty());
    // What it holds was promised before the first step, to the byte.
    EXPECT_EQ(sharded.ledger().peak(), sharded.promise());
    const FullParameters full = sharded.full_parameters();
    Snapshot actual;
    for (const auto& [name, tensor] : named_parameters(subject)) {
      actual.parameters.push_back(tensor.detach().clone());
    }
    const std::lock_guard lock(mutex);
    expect_parity(actual, expected);
  });
}

class OptimizerParity : public testing::TestWithParam<std::tuple<std::size_t, int, int>> {};

TEST_P(OptimizerParity, EqualsOneProcess) {
  const int size = std::get<1>(GetParam()), align_bytes = std::get<2>(GetParam());
  expect_one_process(rules()[std::get<0>(GetParam())], size, [&](const World&, const Units& units) {
    Options options = test_options(units, align_bytes);
    // Shared weights wait for each other before the first write, also where a
    // shard is empty.
    options.store = size == 3 ? Store::kAliased : Store::kSlots;
    return options;
  });
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerParity,
                         testing::Combine(testing::Range(std::size_t{0}, rules().size()),
                                          testing::Values(1, 2, 3, 4), testing::Values(0, 128)),
                         [](const auto& tested) {
                           return rules()[std::get<0>(tested.param)].name + "_" +
                                  std::to_string(std::get<1>(tested.param)) + "ranks_align" +
                                  std::to_string(std::get<2>(tested.param));
                         });

struct StrategyCase {
  const char* name;
  Strategy strategy;
  int replicate;  ///< 0: no mesh
  int shard;
};

class OptimizerStrategy : public testing::TestWithParam<std::tuple<std::size_t, StrategyCase>> {};

TEST_P(OptimizerStrategy, Fault022_AnyStrategyEqualsOneProcess) {
  const StrategyCase tested = std::get<1>(GetParam());
  const int size = tested.replicate == 0 ? tested.shard : tested.replicate * tested.shard;
  expect_one_process(rules()[std::get<0>(GetParam())], size,
                     [&](const World& world, const Units& units) {
                       Options options = test_options(units);
                       options.strategy = tested.strategy;
                       if (tested.replicate > 0) {
                         options.mesh = DeviceMesh(world, tested.replicate, tested.shard);
                       }
                       return options;
                     });
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, OptimizerStrategy,
    testing::Combine(testing::Range(std::size_t{0}, rules().size()),
                     testing::Values(StrategyCase{"Replicate", Strategy::kReplicate, 0, 3},
                                     StrategyCase{"ShardGrad", Strategy::kShardGrad, 0, 2},
                                     StrategyCase{"Hybrid", Strategy::kHybrid, 2, 2},
                                     StrategyCase{"HybridOptimizer", Strategy::kHybridOptimizer, 2,
                                                  2},
                                     StrategyCase{"Secondary", Strategy::kSecondaryShard, 2, 2})),
    [](const auto& tested) {
      return rules()[std::get<0>(tested.param)].name + "_" + std::get<1>(tested.param).name;
    });

/// Weights of ROWS, whose gradient is a constant.
struct Weights : nn::Module {
  explicit Weights(const std::vector<std::int64_t>& rows, double value = 1) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i),
                                           torch::full({rows[i], 1}, value, torch::kDouble)));
    }
  }
  at::Tensor loss(double factor = 1) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& weight : weights) {
      sum = sum + weight.sum() * factor;
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

TEST(OptimizerTest, Fault083_GroupsGoByNameAndWhatIsInNoneStaysAndIsNamed) {
  const auto kind = nested_units();
  Snapshot expected;
  at::Tensor left_out;
  {
    const Subject subject = make_subject(kind);
    std::vector<at::Tensor> weights, biases;
    for (const auto& [name, tensor] : named_parameters(subject)) {
      if (name == "scale") {
        left_out = tensor.detach().clone();
      } else {
        (optim::matches("*.bias", name) ? biases : weights).push_back(tensor);
      }
    }
    using torch::optim::AdamWOptions;
    torch::optim::AdamW of_weights(weights, AdamWOptions(0.1).eps(1e-4).weight_decay(0.1));
    torch::optim::AdamW of_biases(biases, AdamWOptions(0.01).eps(1e-4).weight_decay(0));
    for (int step = 0; step < kSteps; ++step) {
      subject.module->zero_grad();
      subject.loss_of(0, 1).backward();
      of_weights.step();
      of_biases.step();
    }
    for (const auto& [name, tensor] : named_parameters(subject)) {
      expected.parameters.push_back(tensor.detach().clone());
    }
  }
  run_threads(2, [&](World world) {
    const Subject subject = make_subject(kind);
    const Sharded sharded = subject.shard(world, test_options(subject.units));
    optim::AdamW optimizer(
        sharded,
        {{.parameters = {"*.weight"}, .options = {.lr = 0.1, .eps = 1e-4, .weight_decay = 0.1}},
         {.parameters = {"*.bias"}, .options = {.lr = 0.01, .eps = 1e-4, .weight_decay = 0}}});
    EXPECT_THAT(optimizer.untrained(), ElementsAre("scale"));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
    }
    const FullParameters full = sharded.full_parameters();
    Snapshot actual;
    for (const auto& [name, tensor] : named_parameters(subject)) {
      actual.parameters.push_back(tensor.detach().clone());
      EXPECT_TRUE(name != "scale" || torch::equal(tensor, left_out));
    }
    expect_parity(actual, expected);
    EXPECT_THAT(error_of([&] { optim::SGD(sharded, {{.parameters = {"*.wieght"}}}); }),
                HasSubstr("*.wieght"));
  });
}

TEST(OptimizerTest, PatternsFitWholeNames) {
  EXPECT_TRUE(optim::matches("*", "a.b"));
  EXPECT_TRUE(optim::matches("a.*.w", "a.b.c.w"));
  EXPECT_TRUE(optim::matches("*bias", "bias"));
  EXPECT_TRUE(optim::matches("a*b*c", "a.b.b.c"));
  EXPECT_FALSE(optim::matches("a", "a.b"));
  EXPECT_FALSE(optim::matches("*.bias", "bias"));
  EXPECT_FALSE(optim::matches("a*b", "a.b.c"));
  EXPECT_FALSE(optim::matches("", "a"));
}

TEST(OptimizerTest, Fault084_MakingStateChangesNothing) {
  run_threads(2, [](World world) {
    for (const double decay : {0.0, 0.1}) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3, 2}, /*value=*/1);
      const Sharded sharded = fully_shard(model, world, test_options({}));
      optim::AdamW optimizer(sharded, {.lr = 1, .weight_decay = decay});
      optimizer.allocate({"w0", "w1"});
      optimizer.set_steps({{"w0", 0}, {"w1", 0}});
      model->loss().backward();
      optimizer.step();
      for (const at::Tensor& shard : sharded.parameters()) {
        EXPECT_TRUE(
            torch::allclose(shard.detach(), torch::full_like(shard, 1 - decay - 1), 0, 1e-7));
      }
    }
  });
}

TEST(OptimizerTest, Fault040_AFrozenParameterIsLeftAloneAndItsStepsAreNotCounted) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 3});
    model->weights[1].set_requires_grad(false);
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::AdamW optimizer(sharded, {.lr = 0.1, .weight_decay = 0});
    const memory::Bytes before = sharded.ledger().live();
    const at::Tensor initial = sharded.parameters()[1].detach().clone();
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        model->loss().backward();
        optimizer.step();
      }
    };
    train(2);
    EXPECT_TRUE(torch::equal(sharded.parameters()[1].detach(), initial));
    EXPECT_TRUE(optimizer.parameters()[1].states.empty());
    EXPECT_EQ(sharded.ledger().live()[memory::Kind::kMoments], before[memory::Kind::kMoments]);
    model->weights[1].set_requires_grad(true);
    train(2);
    EXPECT_EQ(optimizer.parameters()[0].steps, 4);
    EXPECT_EQ(optimizer.parameters()[1].steps, 2);
    EXPECT_EQ(optimizer.parameters()[1].states.size(), 2u);
    {  // of a constant gradient each step is the rate, if it is corrected by the own counter
      const FullParameters full = sharded.full_parameters();
      EXPECT_TRUE(
          torch::allclose(model->weights[0], torch::full_like(model->weights[0], 0.6), 0, 1e-6));
      EXPECT_TRUE(
          torch::allclose(model->weights[1], torch::full_like(model->weights[1], 0.8), 0, 1e-6));
    }
    model->weights[1].set_requires_grad(false);
    const at::Tensor kept = sharded.parameters()[1].detach().clone();
    train(1);
    EXPECT_TRUE(torch::equal(sharded.parameters()[1].detach(), kept));
    EXPECT_EQ(optimizer.parameters()[1].steps, 2);
    EXPECT_EQ(sharded.ledger().peak()[memory::Kind::kMoments],
              sharded.promise()[memory::Kind::kMoments]);
  });
}

TEST(OptimizerTest, Fault089_AnEmptyShardFollowsItsGroup) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(4, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{1, 9});
      Options options = test_options({});
      options.store = store;
      const Sharded sharded = fully_shard(model, world, options);
      // Only rank 0 holds w0's element.
      optim::SGD first(sharded, {{.parameters = {"w0"}, .options = {.lr = 0.5, .momentum = 0.9}}});
      for (int step = 0; step < 3; ++step) {
        first.zero_grad();
        model->loss().backward();
        {
          const torch::NoGradGuard no_grad;
          model->loss();  // an evaluation, so that the first write has to wait for all ranks
        }
        first.step();
      }
      EXPECT_EQ(first.steps(), 3);
      EXPECT_EQ(sharded.parameters()[0].numel(), world.rank() == 0 ? 1 : 0);
      const FullParameters full = sharded.full_parameters();
      EXPECT_NEAR(model->weights[0].item<double>(), 1 - 0.5 * (1 + 1.9 + 2.71), 1e-12);
      EXPECT_TRUE(torch::equal(model->weights[1], torch::ones({9, 1}, torch::kDouble)));
    });
  }
}

TEST(OptimizerTest, Fault088_AStepTakesNoMemoryBesideWhatWasPromised) {
  install_counting_allocator();
  run_threads(1, [](World world) {
    constexpr std::int64_t kMegabyte = 1 << 20;
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>(20, kMegabyte / 8));
    const Sharded sharded = fully_shard(model, world, test_options({}));
    const std::vector<std::pair<OwnFactory, std::int64_t>> rules = {
        {own<optim::AdamW>(optim::AdamWOptions{}), 40},
        {own<optim::SGD>(optim::SGDOptions{.momentum = 0.9, .nesterov = true}), 20},
        {own<optim::SGD>(optim::SGDOptions{}), 0},
        {own<optim::Lion>(optim::LionOptions{}), 20},
    };
    std::int64_t most = 0;
    for (const auto& [make, moments] : rules) {
      const std::int64_t before = allocator_counts().live_bytes;
      const auto optimizer = make(sharded);
      most = std::max(most, moments);
      EXPECT_EQ(allocator_counts().live_bytes - before, moments * kMegabyte);
      EXPECT_EQ(sharded.ledger().live()[memory::Kind::kMoments], moments * kMegabyte);
      EXPECT_EQ(sharded.promise()[memory::Kind::kMoments], most * kMegabyte);
      optimizer->zero_grad();
      model->loss().backward();
      const std::int64_t live = allocator_counts().live_bytes;
      reset_allocator_counts();
      optimizer->step();
      EXPECT_LE(allocator_counts().peak_bytes - live, 64);  // step counters
    }
  });
}

TEST(OptimizerTest, SgdRefusesAMomentumThatHasNoBuffer) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    optim::SGD optimizer(sharded, {.lr = 0.1});
    optimizer.options().momentum = 0.9;
    model->loss().backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("momentum"));
    EXPECT_THAT(error_of([&] { optim::SGD(sharded, {.nesterov = true}); }), HasSubstr("nesterov"));
    EXPECT_THAT(error_of([&] { optim::Lion(sharded, {.beta1 = 1}); }), HasSubstr("[Lion]"));
    EXPECT_THAT(error_of([&] { optim::Muon(sharded, {.momentum = 1}); }), HasSubstr("[Muon]"));
  });
}

TEST(MuonTest, SingularValuesComeNearOne) {
  torch::manual_seed(1);
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{8, 8}, {5, 20}, {20, 5}, {1, 7}}) {
    at::Tensor matrix = torch::randn(sizes, torch::kDouble);
    const at::Tensor workspace = torch::empty({optim::newton_schulz_numel(sizes)}, torch::kDouble);
    optim::newton_schulz_(matrix, 8, workspace);
    const at::Tensor values = torch::linalg_svdvals(matrix);
    EXPECT_GT(values.min().item<double>(), 0.6) << values;
    EXPECT_LT(values.max().item<double>(), 1.3) << values;
  }
}

TEST(MuonTest, EachMatrixHasOneOwnerTheCostsAreAlikeAndTheBytesAreThoseOfTheFormula) {
  run_threads(2, [](World world) {
    const Subject subject = make_subject(tiny_gpt(true));
    const Sharded sharded = subject.shard(world, test_options(subject.units));
    optim::Muon optimizer(sharded, {}, {"w*"});
    // Two blocks of 6 x 18, 6 x 6, 6 x 24 and 24 x 6 matrices.
    ASSERT_EQ(optimizer.matrices().size(), 8u);
    std::vector<double> cost(2, 0);
    std::int64_t numel = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::vector<std::int64_t> large = {18, 6, 24, 24};
      const auto side = static_cast<double>(large[i % 4]);
      cost[static_cast<std::size_t>(optimizer.whole_matrices().owner(i))] += 36 * (2 * side + 6);
      numel += 6 * large[i % 4];
    }
    EXPECT_EQ(cost[0], cost[1]);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
    }
    const optim::WholeTensorsTraffic traffic = optimizer.whole_matrices().traffic();
    EXPECT_EQ(traffic.gathers, 3);
    EXPECT_EQ(traffic.reduce_scatters, 3);
    EXPECT_EQ(traffic.gather_bytes, 3 * 8 * numel);
    EXPECT_EQ(traffic.reduce_bytes, 3 * 8 * numel);
  });
}

TEST(MuonTest, InHalfTheBytesItStaysNear) {
  run_threads(2, [](World world) {
    std::vector<at::Tensor> shards[2];
    for (const bool low : {false, true}) {
      const Subject subject = make_subject(odd_mlp(), torch::kFloat);
      const Sharded sharded = subject.shard(world, test_options(subject.units));
      optim::Muon optimizer(sharded,
                            {.lr = 0.02, .dtype = low ? at::kBFloat16 : at::ScalarType::Undefined});
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.whole_matrices().traffic().gather_bytes, (low ? 2 : 4) * (35 + 21));
      for (const at::Tensor& shard : sharded.parameters()) {
        shards[low ? 1 : 0].push_back(shard.detach().clone());
      }
    }
    for (std::size_t i = 0; i < shards[0].size(); ++i) {
      EXPECT_TRUE(torch::allclose(shards[0][i], shards[1][i], 0, 0.02 * 0.1)) << i;
    }
  });
}

}  // namespace
