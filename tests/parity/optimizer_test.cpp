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
#include "parity/optimizer_support.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

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

/// A rule that the library does not have, as a user writes it: momentum, with a bound on each step.
// begin rule
struct BoundedOptions {
  double lr = 0.05;
  double beta = 0.9;
};
struct BoundedRule {
  using Options = BoundedOptions;
  static constexpr const char* kName = "Bounded";
  static std::span<const optim::Field<Options>> fields() {
    static constexpr optim::Field<Options> kFields[] = {{"lr", &Options::lr},
                                                        {"beta", &Options::beta}};
    return kFields;
  }
  static std::vector<std::string> states(const Options&) { return {"average"}; }
  static void check(const Options& options) { TORCH_CHECK(options.beta < 1); }
  static void update(const optim::FlatOptimizer::Run& run, const Options& options) {
    at::Tensor shard = run.shard, average = run.states[0];
    average.mul_(options.beta).add_(run.grad);
    shard.sub_(options.lr * average / (1 + average.abs()));
  }
};
// end rule

std::function<void()> plain_bounded(const Named& named) {
  auto averages = std::make_shared<std::map<std::string, at::Tensor>>();
  return [=] {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, p] : named) {
      at::Tensor& average = averages->try_emplace(name, torch::zeros_like(p)).first->second;
      average = 0.9 * average + p.grad();
      at::Tensor weight = p;
      weight.sub_(0.05 * average / (1 + average.abs()));
    }
  };
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
      {"OneOfOnesOwn", odd_mlp(), own<optim::ElementWise<BoundedRule>>(BoundedOptions{}),
       plain_bounded},
      muon_rule("Muon", tiny_gpt(true), {.lr = 0.02, .weight_decay = 0.1}, "w*"),
      muon_rule(
          "MuonAlone", odd_mlp(),
          {.lr = 0.02, .nesterov = false, .scale = optim::MuonScale::kMatchAdamW, .batch_bytes = 1},
          "*.bias"),
  };
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
    EXPECT_EQ(sharded.report().peak, sharded.report().promise);
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
    options.memory.store = size == 3 ? Store::kAliased : Store::kSlots;
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

}  // namespace
