// SPDX-License-Identifier: Apache-2.0
/// Norms and clipping over shards, and the operators that shards refuse, by their faults' numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Weights whose gradients are given: loss = sum over w * g.
struct Given : nn::Module {
  explicit Given(std::vector<std::vector<double>> gradients_in,
                 at::ScalarType dtype = torch::kDouble) {
    for (std::size_t i = 0; i < gradients_in.size(); ++i) {
      gradients.push_back(torch::tensor(gradients_in[i], torch::kDouble).to(dtype).view({-1, 1}));
      weights.push_back(
          register_parameter("w" + std::to_string(i), torch::ones_like(gradients.back())));
    }
  }
  at::Tensor loss(double factor = 1) {
    at::Tensor sum = torch::zeros({}, gradients[0].options());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      sum = sum + (weights[i] * gradients[i] * factor).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights, gradients;
};

TEST(ClipTest, Fault031_EachNormIsThatOfTheWholeAlsoWithEmptyShards) {
  for (const at::ScalarType dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    for (const std::int64_t align_bytes : {0, 128}) {
      run_threads(3, [&](World world) {
        auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3}, {4, 0}}, dtype);
        const Sharded sharded = fully_shard(model, world, test_options({}, align_bytes));
        model->loss().backward();
        EXPECT_DOUBLE_EQ(grad_norm(sharded), 5);
        EXPECT_DOUBLE_EQ(grad_norm(sharded, 1), 7);
        EXPECT_DOUBLE_EQ(grad_norm(sharded, kInfinity), 4);
        EXPECT_NEAR(grad_norm(sharded, 3), std::cbrt(27 + 64), 1e-12);
        EXPECT_NEAR(grad_norm(sharded, 0.5), std::pow(std::sqrt(3) + 2, 2), 1e-12);
        for (const double p : {0.0, -1.0, std::nan("")}) {
          EXPECT_THAT(error_of([&] { grad_norm(sharded, p); }), HasSubstr("p is"));
        }
      });
    }
  }
}

TEST(ClipTest, Fault031_ClippingScalesToEachNorm) {
  run_threads(3, [](World world) {
    for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
      auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3}, {4, -2}, {-1}});
      const Sharded sharded = fully_shard(model, world, test_options({}));
      model->loss().backward();
      const double before = grad_norm(sharded, p);
      EXPECT_EQ(clip_grad_norm_(sharded, 1.5, p), before);
      EXPECT_NEAR(grad_norm(sharded, p), 1.5, 1e-5);
      EXPECT_NEAR(clip_grad_norm_(sharded, 2, p), 1.5, 1e-5);  // small enough: left alone
      EXPECT_NEAR(grad_norm(sharded, p), 1.5, 1e-5);
    }
  });
}

TEST(ClipTest, Fault031_WhatIsNotANumberIsNeverLost) {
  run_threads(3, [](World world) {
    for (const double bad : {std::nan(""), kInfinity}) {
      for (const double p : {1.0, 2.0, 2.5, kInfinity}) {
        auto model =
            std::make_shared<Given>(std::vector<std::vector<double>>{{1, 1}, {bad, 1, 1, 1}});
        Options options = test_options({});
        options.skip_non_finite = p == 2;
        const Sharded sharded = fully_shard(model, world, options);
        model->loss().backward();
        const double norm = clip_grad_norm_(sharded, 1, p);
        EXPECT_FALSE(std::isfinite(norm)) << p;
        if (options.skip_non_finite) {  // no gradients: no optimizer steps
          EXPECT_FALSE(sharded.parameters()[0].grad().defined());
        } else {
          const at::Tensor first = whole_gradients(sharded)[0];
          EXPECT_TRUE(torch::equal(first, torch::ones_like(first))) << "scaled by " << norm;
        }
      }
    }
  });
}

TEST(ClipTest, LowPrecisionAddsUpInFp64) {
  run_threads(2, [](World world) {
    // In bf16, 256 + 1 is 256: 4096 ones after a 256 would be lost.
    std::vector<double> values(4097, 1);
    values[0] = 256;
    auto model =
        std::make_shared<Given>(std::vector<std::vector<double>>{values}, torch::kBFloat16);
    const Sharded sharded = fully_shard(model, world, test_options({}));
    model->loss().backward();
    EXPECT_DOUBLE_EQ(grad_norm(sharded, 1), 256 + 4096);
    EXPECT_DOUBLE_EQ(grad_norm(sharded), std::sqrt(65536 + 4096));
  });
}

TEST(ClipTest, Fault030_WholeParametersCountOnce) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{1, 1, 1, 1}});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    at::Tensor whole = torch::ones({}, torch::kDouble).requires_grad_();
    (model->loss() + 2 * whole).backward();
    EXPECT_NEAR(grad_norm({sharded}, 2, {whole}), 2.828427, 1e-6);
    EXPECT_NEAR(clip_grad_norm_({sharded}, 1, 2, {whole}), 2.828427, 1e-6);
    EXPECT_NEAR(whole.grad().item<double>(), 2 / 2.828427, 1e-6);
    EXPECT_NEAR(grad_norm({sharded}, 2, {whole}), 1, 1e-6);
    EXPECT_NEAR(grad_norm({sharded}, kInfinity, {whole}), 2 / 2.828427, 1e-6);
  });
}

TEST(ClipTest, Fault029_ReplicasCountOnceUnderEveryStrategyInEveryNorm) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGrad, Strategy::kReplicate, Strategy::kHybrid,
        Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
    run_threads(4, [&](World world) {
      auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3, 0}, {0, 4, 0}});
      Options options = test_options({});
      options.strategy = strategy;
      if (strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
          strategy == Strategy::kSecondaryShard) {
        options.mesh = DeviceMesh(world, 2, 2);
      }
      const Sharded sharded = fully_shard(model, world, options);
      model->loss().backward();
      EXPECT_DOUBLE_EQ(grad_norm(sharded, 1), 7) << to_string(strategy);
      EXPECT_DOUBLE_EQ(grad_norm(sharded, kInfinity), 4) << to_string(strategy);
      EXPECT_DOUBLE_EQ(clip_grad_norm_(sharded, 1), 5) << to_string(strategy);
      // Also what a rank does not answer for is scaled: it is what the optimizer steps by.
      for (const NamedShard& parameter : sharded.named_parameters()) {
        const at::Tensor own = model->gradients[parameter.name == "w0" ? 0 : 1].view({-1});
        const at::Tensor expected = own.narrow(0, parameter.begin, parameter.shard.numel()) / 5;
        EXPECT_TRUE(torch::allclose(parameter.shard.grad().clone(), expected, 0, 1e-6));
      }
    });
  }
}

TEST(ClipTest, SeveralModulesHaveOneNorm) {
  run_threads(2, [](World world) {
    auto first = std::make_shared<Given>(std::vector<std::vector<double>>{{3, 0}});
    auto second = std::make_shared<Given>(std::vector<std::vector<double>>{{0, 0, 4}});
    const Sharded one = fully_shard(first, world, test_options({}));
    const Sharded other = fully_shard(second, world, test_options({}));
    (first->loss() + second->loss()).backward();
    EXPECT_DOUBLE_EQ(clip_grad_norm_({one, other}, 1), 5);
    EXPECT_NEAR(grad_norm(one), 0.6, 1e-6);
    EXPECT_NEAR(grad_norm(other), 0.8, 1e-6);
  });
}

TEST(ClipTest, FrozenAndUnusedParametersDoNotCount) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3}, {100, 100}, {4}});
    model->weights[1].set_requires_grad(false);
    const Sharded sharded = fully_shard(model, world, test_options({}));
    model->loss().backward();
    EXPECT_DOUBLE_EQ(clip_grad_norm_(sharded, 1), 5);
  });
}

TEST(ClipTest, ByValueEachElementIsClamped) {
  run_threads(3, [](World world) {
    auto model =
        std::make_shared<Given>(std::vector<std::vector<double>>{{3, -0.5}, {-4, 0.25, 9}});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    model->loss().backward();
    clip_grad_value_(sharded, 0.75);
    const auto gradients = whole_gradients(sharded);
    const auto expected = [](std::vector<double> values) {
      return torch::tensor(values, torch::kDouble).view({-1, 1});
    };
    EXPECT_TRUE(torch::equal(gradients[0], expected({0.75, -0.5})));
    EXPECT_TRUE(torch::equal(gradients[1], expected({-0.75, 0.25, 0.75})));
    EXPECT_THAT(error_of([&] { clip_grad_value_(sharded, 0); }), HasSubstr("max_value"));
  });
}

// --- operators that shards refuse ----------------------------------------------------------------

using OnTensor = std::function<void(const at::Tensor&)>;

TEST(ShardOperators, Fault028_StockClippingOfShardsIsRefusedInEachNorm) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3, 1}, {4}});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    model->loss().backward();
    for (const double p : {1.0, 2.0, kInfinity}) {
      const std::string error =
          error_of([&] { nn::utils::clip_grad_norm_(sharded.parameters(), 1.0, p); });
      EXPECT_THAT(error, HasSubstr("fsdp::clip_grad_norm_(sharded")) << p;
      EXPECT_THAT(error, HasSubstr("the gradient of \"w")) << p;
    }
    nn::utils::clip_grad_value_(sharded.parameters(), 2.0);  // by elements: right
    EXPECT_DOUBLE_EQ(grad_norm(sharded, kInfinity), 2);
  });
}

TEST(ShardOperators, Fault090_WhatMixesElementsIsRefusedAndACopyIsPlain) {
  const std::vector<std::pair<const char*, OnTensor>> refused = {
      {"norm", [](const at::Tensor& t) { (void)t.norm(); }},
      {"norm of data", [](const at::Tensor& t) { (void)t.data().norm(2); }},
      {"linalg_vector_norm", [](const at::Tensor& t) { (void)at::linalg_vector_norm(t); }},
      {"_foreach_norm", [](const at::Tensor& t) { (void)at::_foreach_norm(std::vector{t}); }},
      {"sum", [](const at::Tensor& t) { (void)t.sum(); }},
      {"mean", [](const at::Tensor& t) { (void)t.mean(); }},
      {"max", [](const at::Tensor& t) { (void)t.max(); }},
      {"dot", [](const at::Tensor& t) { (void)t.dot(at::ones_like(t)); }},
      {"dot from the right", [](const at::Tensor& t) { (void)at::ones_like(t).dot(t); }},
      {"matmul", [](const at::Tensor& t) { (void)t.view({1, -1}).matmul(t); }},
      {"std", [](const at::Tensor& t) { (void)t.std(); }},
      {"cat", [](const at::Tensor& t) { (void)at::cat(std::vector{t, t}); }},
      {"abs max", [](const at::Tensor& t) { (void)t.abs().max(); }},
      {"square sum", [](const at::Tensor& t) { (void)t.square().sum(); }},
      {"pow sum", [](const at::Tensor& t) { (void)t.pow(2).sum(); }},
      {"float norm", [](const at::Tensor& t) { (void)t.to(at::kFloat).norm(); }},
  };
  const std::vector<std::pair<const char*, OnTensor>> allowed = {
      {"clone sum", [](const at::Tensor& t) { (void)t.clone().sum(); }},
      {"add", [](const at::Tensor& t) { (void)(t + t * 2).sqrt(); }},
      {"max of two", [](const at::Tensor& t) { (void)at::max(t, at::ones_like(t)); }},
      {"equal", [](const at::Tensor& t) { (void)at::equal(t, t); }},
      {"print", [](const at::Tensor& t) { std::ostringstream() << t; }},
      {"one element", [](const at::Tensor& t) { (void)t[0].item<double>(); }},
      {"abs", [](const at::Tensor& t) { (void)(t.abs() * 2 + t.square()); }},
  };
  run_threads(2, [&](World world) {
    const torch::NoGradGuard no_grad;
    auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{3, 1}, {4, 2, 2}});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    {
      const torch::AutoGradMode grad(true);
      model->loss().backward();
    }
    for (const at::Tensor& shard : sharded.parameters()) {
      for (const at::Tensor& tensor : {shard, shard.grad()}) {
        for (const auto& call : refused) {
          EXPECT_THAT(error_of([&] { call.second(tensor); }), HasSubstr("elements")) << call.first;
        }
        for (const auto& call : allowed) {
          if (tensor.numel() > 0) {
            EXPECT_EQ(error_of([&] { call.second(tensor); }), "no error") << call.first;
          }
        }
      }
    }
  });
}

TEST(ShardOperators, Fault090_LbfgsIsRefused) {
  run_threads(2, [](World world) {
    Chain model(1, 4);
    const Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    torch::optim::LBFGS optimizer(sharded.parameters());
    const auto step = [&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = model->forward(torch::ones({2, 4})).sum();
        loss.backward();
        return loss;
      });
    };
    EXPECT_THAT(error_of(step), HasSubstr("LBFGS"));
  });
}

TEST(ShardOperators, Fault090_AnOptimizerThatNeedsRowsIsRefusedAndRightByWholeTensors) {
  // Each row's step is divided by the row's norm.
  const std::vector<std::string> names = {"first.weight", "last.weight", "link0.linear.weight"};
  const auto make = [] {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(3);
    Chain model(1, 5);
    model->to(torch::kDouble);
    for (const auto& item : model->named_parameters()) {
      item.value().set_requires_grad(item.value().dim() == 2);
    }
    return model;
  };
  const at::Tensor x = torch::randn({6, 5}, torch::kDouble);
  Chain reference = make();
  for (int step = 0; step < 3; ++step) {
    reference->zero_grad();
    reference->forward(x).square().mean().backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& w : reference->parameters()) {
      if (w.dim() == 2) {
        w.sub_(0.1 * w.grad() / w.norm(2, 1, true));
      }
    }
  }
  run_threads(3, [&](World world) {
    Chain model = make();
    const Sharded sharded = fully_shard(model, world, test_options(chain_units()));
    optim::WholeTensors whole(sharded, names);
    for (int step = 0; step < 3; ++step) {
      Sharded(sharded).zero_grad();
      model->forward(x.chunk(3)[world.rank()]).square().mean().backward();
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(error_of([&] { (void)sharded.parameters()[0].norm(); }),
                  HasSubstr("fsdp::optim::WholeTensors"));
      std::vector<at::Tensor> inverse_norms(names.size());
      std::map<std::string, at::Tensor> by_name;
      for (const NamedShard& parameter : sharded.named_parameters()) {
        by_name[parameter.name] = parameter.shard;
      }
      whole.transform(
          {0, 1, 2},
          [&](std::size_t i, std::int64_t begin, at::Tensor dst) {
            dst.copy_(by_name[names[i]].narrow(0, begin, dst.numel()));
          },
          [](std::size_t, at::Tensor w) { w.copy_((1 / w.norm(2, 1, true)).expand_as(w)); },
          [&](std::size_t i, at::Tensor src) { inverse_norms[i] = src.clone(); });
      for (std::size_t i = 0; i < names.size(); ++i) {
        at::Tensor shard = by_name[names[i]];
        shard.sub_(0.1 * shard.grad() * inverse_norms[i]);
      }
    }
    const FullParameters full = sharded.full_parameters();
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      const at::Tensor difference = model->parameters()[i] - reference->parameters()[i];
      EXPECT_LE(difference.abs().max().item<double>(), 1e-12);
    }
    EXPECT_THAT(error_of([&] { optim::WholeTensors(sharded, {"nobody"}); }), HasSubstr("nobody"));
  });
}

using StockFactory =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

TEST(ShardOperators, ElementWiseStockOptimizersTrainAsInOneProcess) {
  using namespace torch::optim;
  const std::vector<std::pair<const char*, StockFactory>> optimizers = {
      {"SGD",
       [](auto p) {
         return std::make_shared<SGD>(p, SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
       }},
      {"Adam",
       [](auto p) { return std::make_shared<Adam>(p, AdamOptions(1e-2).eps(1e-4).amsgrad(true)); }},
      {"AdamW", [](auto p) { return std::make_shared<AdamW>(p, AdamWOptions(1e-2).eps(1e-4)); }},
      {"Adagrad",
       [](auto p) { return std::make_shared<Adagrad>(p, AdagradOptions(1e-2).eps(1e-4)); }},
      {"RMSprop",
       [](auto p) {
         return std::make_shared<RMSprop>(
             p, RMSpropOptions(1e-3).eps(1e-4).momentum(0.9).centered(true));
       }},
  };
  for (const auto& tested : optimizers) {
    SCOPED_TRACE(tested.first);
    const Snapshot expected = train_reference(nested_units(), 2, tested.second, 5);
    run_threads(2, [&](World world) {
      const Options options = test_options(make_subject(nested_units()).units);
      expect_parity(train_sharded(nested_units(), world, options, tested.second, 5), expected);
    });
  }
}

TEST(ShardOperators, Fault083_GroupsOfStockOptimizersGoByName) {
  run_threads(2, [](World world) {
    using torch::optim::SGDOptions;
    auto model = std::make_shared<Given>(std::vector<std::vector<double>>{{1, 1}, {1, 1, 1}, {1}});
    const Sharded sharded = fully_shard(model, world, test_options({}));
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.push_back(optim::param_group(sharded, {"w0"}, std::make_unique<SGDOptions>(0.5)));
    groups.push_back(optim::param_group(sharded, {"*1"}, std::make_unique<SGDOptions>(0.25)));
    torch::optim::SGD optimizer(std::move(groups), SGDOptions(0.125));
    model->loss().backward();
    optimizer.step();
    const FullParameters full = sharded.full_parameters();
    EXPECT_TRUE(torch::equal(model->weights[0], torch::full({2, 1}, 0.5, torch::kDouble)));
    EXPECT_TRUE(torch::equal(model->weights[1], torch::full({3, 1}, 0.75, torch::kDouble)));
    EXPECT_TRUE(torch::equal(model->weights[2], torch::ones({1, 1}, torch::kDouble)));
  });
}

}  // namespace
