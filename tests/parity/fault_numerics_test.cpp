// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems in gradients, factors and counters, by their number in
/// docs/reference/faults.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <mutex>

#include "fsdp/fsdp.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

/// Sets every gradient shard to `value` by a backward whose gradient is that constant.
struct Weights : nn::Module {
  explicit Weights(std::vector<std::int64_t> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      weights.push_back(
          register_parameter("w" + std::to_string(i), torch::ones({rows[i], 1}, torch::kDouble)));
    }
  }
  /// The gradient of every element is `factor`.
  at::Tensor forward(double factor) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& weight : weights) {
      sum = sum + weight.sum() * factor;
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

TEST(FaultNumerics, Fault010_CountersAdvanceAlsoWhereAShardIsEmpty) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{1, 9});
    Sharded sharded = fully_shard(model, world, test_options({}));
    torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.1));
    optim::AdamW fused(sharded, {.lr = 0.0});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->forward(1.0).backward();
      optimizer.step();
      fused.step();
    }
    for (const at::Tensor& shard : sharded.parameters()) {
      auto& state = static_cast<torch::optim::AdamWParamState&>(
          *optimizer.state().at(shard.unsafeGetTensorImpl()));
      EXPECT_EQ(state.step(), 3) << "rank " << world.rank() << " numel " << shard.numel();
    }
    EXPECT_EQ(fused.steps(), 3);
    // Only rank 0 holds the one element of w0 at this alignment.
    EXPECT_EQ(sharded.parameters()[0].numel(), world.rank() == 0 ? 1 : 0);
  });
}

TEST(FaultNumerics, Fault014_LossIsAveragedOnceWhateverTheWorldSize) {
  // Eight samples, split unevenly: rank r takes more the higher r is.
  const at::Tensor data = torch::arange(1.0, 9.0, torch::kDouble);
  std::vector<double> gradients;
  for (int size : {1, 2, 4}) {
    run_threads(size, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{1});
      Sharded sharded = fully_shard(model, world, test_options({}));
      const std::int64_t begin = world.rank() == 0 ? 0 : world.rank() + 1;
      const std::int64_t end = world.rank() + 1 == size ? 8 : world.rank() + 2;
      const at::Tensor mine = data.slice(0, begin, end);
      sharded.set_gradient_divisor(count_over_ranks(world, static_cast<double>(mine.numel())));
      (model->weights[0].view({1}) * mine).sum().backward();
      const at::Tensor gradient = whole_gradients(sharded)[0];
      if (world.rank() == 0) {
        gradients.push_back(gradient.item<double>());
      }
    });
  }
  for (double gradient : gradients) {
    EXPECT_NEAR(gradient, 4.5, 1e-12);
  }
}

TEST(FaultNumerics, Fault014_AWrongCountIsRefusedOnAllRanks) {
  run_threads(2, [](World world) {
    EXPECT_THROW(count_over_ranks(world, world.rank() == 0 ? 5.0 : -1.0), Error);
    EXPECT_THROW(count_over_ranks(world, 0.0), Error);
  });
}

struct SquareLinear : nn::Module {
  SquareLinear() : linear(register_module("linear", nn::Linear(3, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(linear(x)); }
  nn::Linear linear;
};

TEST(FaultNumerics, Fault019_UnitUsedTwiceIsReducedOnce) {
  auto reference = std::make_shared<SquareLinear>();
  reference->to(torch::kDouble);
  const at::Tensor x = torch::randn({4, 3}, torch::kDouble);
  reference->forward(x).square().mean().backward();
  run_threads(2, [&](World world) {
    auto model = std::make_shared<SquareLinear>();
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      model->linear->weight.copy_(reference->linear->weight);
      model->linear->bias.copy_(reference->linear->bias);
    }
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    sharded.reset_counters();
    model->forward(x.chunk(2)[world.rank()]).square().mean().backward();
    EXPECT_EQ(sharded.report().counters.reduce_scatters, 1);
    const auto gradients = whole_gradients(sharded);
    EXPECT_LE((gradients[0] - reference->linear->weight.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_LE((gradients[1] - reference->linear->bias.grad()).abs().max().item<double>(), 1e-12);
  });
}

TEST(FaultNumerics, Fault020_GroupOfOneIsIdentity) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
    Sharded sharded = fully_shard(model, world, test_options({}));
    for (int micro = 0; micro < 10; ++micro) {
      model->forward(1.0).backward();
    }
    EXPECT_TRUE(
        torch::equal(sharded.parameters()[0].grad(), torch::full({3}, 10.0, torch::kDouble)));
  });
}

TEST(FaultNumerics, AccumulationAddsAndAveragesOverRanks) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
    Sharded sharded = fully_shard(model, world, test_options({}));
    for (int micro = 1; micro <= 3; ++micro) {
      model->forward((world.rank() + 1) * micro).backward();
    }
    // Mean over ranks of (rank + 1) is 2, the sum of the micro-steps 6.
    for (const at::Tensor& gradient : whole_gradients(sharded)) {
      EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, 12.0)));
    }
    sharded.zero_grad();
    model->forward(1.0).backward();
    for (const at::Tensor& gradient : whole_gradients(sharded)) {
      EXPECT_TRUE(torch::equal(gradient, torch::ones_like(gradient)));
    }
  });
}

TEST(FaultNumerics, GradientsOfSomeParametersMayBeResetAlone) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
    Sharded sharded = fully_shard(model, world, test_options({}));
    model->forward(1.0).backward();
    sharded.parameters()[0].mutable_grad().reset();
    model->forward(1.0).backward();
    const auto gradients = whole_gradients(sharded);
    EXPECT_TRUE(torch::equal(gradients[0], torch::ones_like(gradients[0])));
    EXPECT_TRUE(torch::equal(gradients[1], torch::full_like(gradients[1], 2.0)));
  });
}

TEST(FaultNumerics, Fault028_NormIsThatOfTheWholeGradient) {
  for (const std::int64_t align_bytes : {0, 128}) {
    for (const int size : {1, 4}) {
      run_threads(size, [&](World world) {
        auto model = std::make_shared<Weights>(std::vector<std::int64_t>{6});
        Sharded sharded = fully_shard(model, world, test_options({}, align_bytes));
        model->forward(1.0).backward();
        EXPECT_NEAR(grad_norm(sharded), 2.449490, 1e-6);
        EXPECT_NEAR(clip_grad_norm_(sharded, 1.0), 2.449490, 1e-6);
        const at::Tensor gradient = whole_gradients(sharded)[0];
        EXPECT_LE((gradient - 0.408248).abs().max().item<double>(), 1e-6);
        EXPECT_NEAR(grad_norm(sharded), 1.0, 1e-6);
      });
    }
  }
}

TEST(FaultNumerics, Fault028_StockClippingOfTheModuleIsRefused) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{6});
    Sharded sharded = fully_shard(model, world, test_options({}));
    model->forward(1.0).backward();
    try {
      nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      ADD_FAILURE() << "stock clipping went through";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("fsdp::clip_grad_norm_"), std::string::npos);
    }
  });
}

TEST(FaultNumerics, ANormThatIsNotFiniteScalesNothing) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{4});
    Sharded sharded = fully_shard(model, world, test_options({}));
    model->forward(world.rank() == 0 ? 1.0 : std::nan("")).backward();
    EXPECT_FALSE(std::isfinite(clip_grad_norm_(sharded, 1.0)));
  });
}

TEST(FaultNumerics, FusedAdamWEqualsTheStockOne) {
  for (const bool freeze : {false, true}) {
    run_threads(3, [&](World world) {
      const auto train = [&](bool fused) {
        const Subject subject = make_subject(nested_units());
        if (freeze) {
          subject.parameters()[1].set_requires_grad(false);
        }
        Sharded sharded = subject.shard(world, test_options(subject.units));
        optim::AdamW own(sharded, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
        torch::optim::AdamW stock(sharded.parameters(),
                                  torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
        for (int step = 0; step < 5; ++step) {
          own.zero_grad();
          subject.loss_of(world.rank(), world.size()).backward();
          if (fused) {
            own.step();
          } else {
            stock.step();
          }
        }
        std::vector<at::Tensor> shards;
        for (const at::Tensor& shard : sharded.parameters()) {
          shards.push_back(shard.detach().clone());
        }
        return shards;
      };
      const auto own = train(true);
      const auto stock = train(false);
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_TRUE(torch::allclose(own[i], stock[i], 0, 1e-12)) << i;
      }
    });
  }
}

}  // namespace
