// SPDX-License-Identifier: Apache-2.0
/// Modules and steps that sharding finds hard, each against plain LibTorch, under every combination
/// of store, prefetch, kept root and alignment.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/four_layers.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

std::vector<Options> all_options(const Units& units) {
  std::vector<Options> all;
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    for (const int prefetch : {0, 1, 9}) {
      for (const bool keep_root : {false, true}) {
        Options options = test_options(units, keep_root ? 128 : 0, prefetch);
        if (keep_root) {
          options.rules.push_back({.units = root_unit(), .keep_gathered = true});
        }
        options.memory.store = store;
        all.push_back(options);
      }
    }
  }
  return all;
}

/// Not the same on two ranks, nor in two steps.
/// What a step needs to know. `sharded` is null in the reference, whose process plays all ranks.
struct Turn {
  int rank = 0;
  int step = 0;
  double scale = 1;  ///< of every loss: 1 / ranks in the reference
  Sharded* sharded = nullptr;
  at::Tensor x() const { return input(rank, step); }
};

/// Trains by `step`, which calls backward itself, and expects what plain LibTorch gives.
template <class Model>
void expect_parity(const std::vector<int>& sizes, const std::vector<Options>& all,
                   const std::function<std::shared_ptr<Model>()>& make,
                   const std::function<void(Model&, const Turn&)>& step) {
  constexpr int kSteps = 4;
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  for (const int size : sizes) {
    const auto reference = make();
    std::vector<at::Tensor> initial;
    for (const at::Tensor& parameter : reference->parameters()) {
      initial.push_back(parameter.detach().clone());
    }
    torch::optim::SGD optimizer(reference->parameters(), sgd);
    for (int number = 0; number < kSteps; ++number) {
      optimizer.zero_grad();
      for (int rank = 0; rank < size; ++rank) {
        step(*reference, {.rank = rank, .step = number, .scale = 1.0 / size});
      }
      optimizer.step();
    }
    for (const Options& options : all) {
      std::mutex generator;
      run_threads(size, [&](World world) {
        std::shared_ptr<Model> model;
        {
          std::lock_guard lock(generator);
          torch::NoGradGuard no_grad;
          model = make();
          const auto parameters = model->parameters();
          for (std::size_t i = 0; i < initial.size(); ++i) {
            parameters[i].copy_(initial[i]);
          }
        }
        Sharded sharded = fully_shard(model, world, options);
        torch::optim::SGD own(sharded.parameters(), sgd);
        for (int number = 0; number < kSteps; ++number) {
          own.zero_grad();
          step(*model, {.rank = world.rank(), .step = number, .sharded = &sharded});
          EXPECT_EQ(sharded.report().unsharded_numel, 0) << "step " << number;
          own.step();
        }
        const auto full = sharded.full_parameters();
        const auto actual = model->parameters();
        const auto expected = reference->parameters();
        for (std::size_t i = 0; i < actual.size(); ++i) {
          // bfloat16 and float16 gradients are rounded once a rank.
          const double tolerance = c10::elementSize(actual[i].scalar_type()) > 4 ? 1e-12 : 2e-3;
          EXPECT_TRUE(torch::allclose(actual[i].to(torch::kComplexDouble),
                                      expected[i].to(torch::kComplexDouble), tolerance, tolerance))
              << "parameter " << i << " at " << size << " ranks, prefetch "
              << options.memory.prefetch << ", rules " << options.rules.size();
        }
      });
    }
  }
}

struct OddShapes : nn::Module {
  OddShapes() {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{0, 3}, {}, {1}, {5, 0}, {3, 2}, {0}}) {
      weights.push_back(register_parameter("w" + std::to_string(weights.size()),
                                           torch::randn(shape, torch::kDouble)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return 0.01 *
           ((x.matmul(weights[4]) * weights[1] + weights[2]).square().sum() +
            torch::cat({weights[0], x}).sum() * weights[1] + weights[3].sum() + weights[5].sum());
  }
  std::vector<at::Tensor> weights;
};

TEST(HardModules, ParametersOfNoElementOrNoDimension) {
  expect_parity<OddShapes>(
      {1, 2, 3, 8}, all_options({}), [] { return std::make_shared<OddShapes>(); },
      [](OddShapes& model, const Turn& turn) {
        (model.forward(turn.x()) * turn.scale).backward();
      });
}

TEST(HardModules, UnitsOfNoElement) {
  struct Empty : nn::Module {
    Empty() : weight(register_parameter("weight", torch::zeros({0, 3}, torch::kDouble))) {}
    at::Tensor weight;
  };
  expect_parity<Empty>(
      {1, 3}, all_options({}), [] { return std::make_shared<Empty>(); },
      [](Empty& model, const Turn& turn) { (model.weight.sum() * turn.scale).backward(); });
}

/// Takes its weights in lists, and holds parameters of types that do not train.
struct Lists : nn::Module {
  Lists()
      : index(register_parameter("index", torch::tensor({2, 0, 1}, torch::kLong), false)),
        mask(register_parameter("mask", torch::tensor({true, false, true}), false)),
        wave(register_parameter("wave", torch::randn({3}, torch::kComplexDouble), false)) {
    for (const char* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, torch::randn({3, 3}, torch::kDouble)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x.matmul(torch::cat(weights, 1)).sum() + torch::block_diag(weights).sum() +
                         torch::einsum("ij,jk,kl->il", weights).sum() +
                         torch::_foreach_mul(weights, 2.0)[1].square().sum() +
                         weights[0].index({index}).sum() + weights[1].index({mask}).sum() +
                         torch::real(wave * wave.conj()).sum() * weights[2].sum();
    return 0.01 * y;
  }
  std::vector<at::Tensor> weights;
  at::Tensor index, mask, wave;
};

TEST(HardModules, WeightsInListsAndTypesThatDoNotTrain) {
  std::vector<Options> all = all_options({});
  for (Options& options : all) {
    options.memory.extra_slots = 3;
  }
  expect_parity<Lists>(
      {1, 2, 3}, all, [] { return std::make_shared<Lists>(); },
      [](Lists& model, const Turn& turn) { (model.forward(turn.x()) * turn.scale).backward(); });
}

struct Mixed : nn::Module {
  Mixed()
      : single(register_parameter("single", torch::randn({3, 3}, torch::kFloat))),
        whole(register_parameter("whole", torch::randn({3}, torch::kDouble))),
        brain(register_parameter("brain", torch::randn({3, 3}, torch::kBFloat16))),
        half(register_parameter("half", torch::randn({7}, torch::kHalf))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::tanh(x.to(torch::kFloat).matmul(single));
    return 0.01 * ((y.to(torch::kBFloat16).matmul(brain).to(torch::kDouble) * whole).sum() +
                   half.to(torch::kDouble).sum() + (single * whole).sum());
  }
  at::Tensor single, whole, brain, half;
};

TEST(HardModules, FourTypesInOneModule) {
  std::vector<Options> all = all_options({});
  for (Options& options : all) {
    options.memory.extra_slots = 1;
    options.precision.low_precision_shards = true;  // as the module trains by itself
  }
  expect_parity<Mixed>(
      {1, 2}, all, [] { return std::make_shared<Mixed>(); },
      [](Mixed& model, const Turn& turn) { (model.forward(turn.x()) * turn.scale).backward(); });
}

struct Nested : nn::Module {
  explicit Nested(int depth)
      : layer(register_module("layer", nn::Linear(3, 3))),
        scale(register_parameter("scale", torch::ones({3}))) {
    if (depth > 1) {
      inner = register_module("inner", std::make_shared<Nested>(depth - 1));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::tanh(layer(x)) * scale;
    return inner == nullptr ? y : (y + inner->forward(y)) * scale;
  }
  nn::Linear layer;
  std::shared_ptr<Nested> inner;
  at::Tensor scale;
};

TEST(HardModules, FiveNestedUnitsWithAccumulation) {
  expect_parity<Nested>(
      {1, 2, 3}, all_options(units_of<Nested>()), [] { return std::make_shared<Nested>(5); },
      [](Nested& model, const Turn& turn) {
        for (int micro = 0; micro < 2; ++micro) {
          (model.forward(turn.x() + micro).square().sum() * turn.scale * 0.1).backward();
        }
      });
}

void expect_net_parity(const std::function<void(FourLayers&, const Turn&)>& step) {
  expect_parity<FourLayers>(
      {1, 2, 3}, all_options(units_of<nn::Linear>()), [] { return std::make_shared<FourLayers>(); },
      step);
}

TEST(HardSteps, FrozenUnitsAndParametersThatThaw) {
  expect_net_parity([](FourLayers& model, const Turn& turn) {
    model.layers[1]->weight.set_requires_grad(turn.step % 2 == 0);
    model.layers[1]->bias.set_requires_grad(turn.step % 2 == 0);
    model.layers[2]->bias.set_requires_grad(turn.step > 0);
    (model.loss(turn.x()) * turn.scale).backward();
  });
}

TEST(HardSteps, SeveralForwardsBeforeTheirBackwards) {
  expect_net_parity([](FourLayers& model, const Turn& turn) {
    const at::Tensor first = model.loss(turn.x()) * turn.scale;
    const at::Tensor second = model.loss(turn.x() + 1) * turn.scale;
    const at::Tensor third = model.forward(turn.x() + 2).sum() * turn.scale;
    first.backward();
    third.backward();
    second.backward();
  });
}

TEST(HardSteps, AKeptGraphRunsAgain) {
  expect_net_parity([](FourLayers& model, const Turn& turn) {
    const at::Tensor loss = model.loss(turn.x()) * turn.scale;
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST(HardSteps, EvaluationInsideATrainingForward) {
  expect_net_parity([](FourLayers& model, const Turn& turn) {
    const at::Tensor x = turn.x();
    at::Tensor y = torch::tanh(model.layers[0](x));
    at::Tensor target;
    {
      torch::NoGradGuard no_grad;
      target = model.forward(x) + 1;
    }
    {
      c10::InferenceMode inference;
      model.forward(x.clone());
    }
    y = model.forward(torch::tanh(model.layers[1](y)));
    ((y - target).square().sum() * turn.scale).backward();
    const at::Tensor loss = model.loss(x + 1) * turn.scale;
    {
      torch::NoGradGuard no_grad;
      model.forward(x);
    }
    loss.backward();
  });
}

TEST(HardSteps, GradientsOfGradients) {
  expect_net_parity([](FourLayers& model, const Turn& turn) {
    const at::Tensor x = turn.x().requires_grad_();
    const at::Tensor loss = model.loss(x);
    const auto gradients =
        torch::autograd::grad({loss}, {x, model.layers[2]->weight, model.scale}, {},
                              /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor penalty = loss;
    for (const at::Tensor& gradient : gradients) {
      penalty = penalty + 0.01 * gradient.square().sum();
    }
    (penalty * turn.scale).backward();
  });
}

TEST(HardSteps, AnErrorThatAllRanksSeeHealsByItself) {
  const auto fail_at = [](FourLayers& model, const at::Tensor& y) {
    y.register_hook([](const at::Tensor&) { throw std::runtime_error("user's hook"); });
    EXPECT_ANY_THROW(model.loss(y).backward());
  };
  expect_net_parity([&](FourLayers& model, const Turn& turn) {
    if (turn.sharded != nullptr) {
      EXPECT_ANY_THROW(model.layers[1](torch::ones({4, 7}, torch::kDouble)));
      fail_at(model, torch::tanh(model.layers[0](turn.x())));
      fail_at(model, torch::tanh(model.layers[2](model.forward(turn.x()))));
      // As with plain LibTorch, what a broken backward had finished is in the gradients.
      turn.sharded->zero_grad();
    }
    (model.loss(turn.x()) * turn.scale).backward();
  });
}

TEST(HardSteps, TwoModelsTakeTurns) {
  struct Pair : nn::Module {
    Pair()
        : generator(register_module("generator", std::make_shared<FourLayers>())),
          critic(register_module("critic", std::make_shared<FourLayers>())) {}
    std::shared_ptr<FourLayers> generator, critic;
  };
  struct Both {
    Sharded generator, critic;
  };
  const auto train = [](Pair& pair, std::vector<at::Tensor> generator,
                        std::vector<at::Tensor> critic, const std::vector<int>& ranks) {
    torch::optim::SGD first(std::move(generator), torch::optim::SGDOptions(0.05));
    torch::optim::SGD second(std::move(critic), torch::optim::SGDOptions(0.05));
    const double scale = 1.0 / static_cast<double>(ranks.size());
    for (int step = 0; step < 3; ++step) {
      second.zero_grad();
      for (const int rank : ranks) {
        const at::Tensor x = input(rank, step);
        ((pair.critic->loss(x) - pair.critic->loss(pair.generator->forward(x).detach())) * scale)
            .backward();
      }
      second.step();
      first.zero_grad();
      for (const int rank : ranks) {
        (pair.critic->loss(pair.generator->forward(input(rank, step))) * scale).backward();
      }
      first.step();
    }
  };
  const auto reference = std::make_shared<Pair>();
  std::vector<at::Tensor> initial;
  for (const at::Tensor& parameter : reference->parameters()) {
    initial.push_back(parameter.detach().clone());
  }
  train(*reference, reference->generator->parameters(), reference->critic->parameters(), {0, 1});
  for (const Options& options : all_options(units_of<nn::Linear>())) {
    std::mutex generator;
    run_threads(2, [&](World world) {
      std::shared_ptr<Pair> pair;
      {
        std::lock_guard lock(generator);
        torch::NoGradGuard no_grad;
        pair = std::make_shared<Pair>();
        for (std::size_t i = 0; i < initial.size(); ++i) {
          pair->parameters()[i].copy_(initial[i]);
        }
      }
      const Both both{fully_shard(pair->generator, world, options),
                      fully_shard(pair->critic, world, options)};
      train(*pair, both.generator.parameters(), both.critic.parameters(), {world.rank()});
      const auto first = both.generator.full_parameters();
      const auto second = both.critic.full_parameters();
      for (std::size_t i = 0; i < initial.size(); ++i) {
        EXPECT_TRUE(
            torch::allclose(pair->parameters()[i], reference->parameters()[i], 1e-10, 1e-12))
            << i;
      }
    });
  }
}

TEST(HardSteps, AllFrozenReducesNothing) {
  for (const Options& options : all_options(units_of<nn::Linear>())) {
    run_threads(2, [&](World world) {
      const auto model = std::make_shared<FourLayers>();
      for (const at::Tensor& parameter : model->parameters()) {
        parameter.set_requires_grad(false);
      }
      Sharded sharded = fully_shard(model, world, options);
      for (int step = 0; step < 2; ++step) {
        const at::Tensor x = input(world.rank(), step).requires_grad_();
        model->loss(x).backward();
        EXPECT_TRUE(x.grad().defined());
        EXPECT_EQ(sharded.report().unsharded_numel, 0);
      }
      EXPECT_EQ(sharded.report().counters.reduce_scatters, 0);
      EXPECT_EQ(grad_norm(sharded), 0);
    });
  }
}

}  // namespace
