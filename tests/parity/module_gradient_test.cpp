// SPDX-License-Identifier: Apache-2.0
/// What a program does to the grads of the module's own tensors, by its number in
/// docs/reference/faults.md: the shards follow, or an error says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

/// With the same weights whenever and wherever it is made.
struct Pair : nn::Module {
  Pair() : a(register_module("a", nn::Linear(3, 4))), b(register_module("b", nn::Linear(4, 2))) {
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kDouble)
                          .mul(0.7)
                          .add(static_cast<double>(parameter.dim()))
                          .sin()
                          .view(parameter.sizes()));
    }
  }
  at::Tensor loss(int step, int rank, int ranks) {
    const at::Tensor all =
        torch::arange(24, torch::kDouble).mul(0.3).add(step).cos().view({8, 3}).chunk(ranks)[rank];
    return b(torch::tanh(a(all))).square().mean();
  }
  nn::Linear a, b;
};

Options options_of(Strategy strategy, const World& world) {
  Options options = test_options(units_of<nn::Linear>());
  options.strategy = strategy;
  if (strategy == Strategy::kHybrid) {
    options.mesh = DeviceMesh(world, 2, world.size() / 2);
  }
  return options;
}

/// A training program in letters.
struct Program {
  Pair& model;
  std::function<void()> step = {};
  std::function<void()> zero = {};  ///< the optimizer's
  int rank = 0, ranks = 1;
  Sharded* sharded = nullptr;  ///< null in one process
  at::Tensor loss = {};
  int forwards = 0;

  void run(char letter) {
    const auto sync = [&](GradientSync to) {
      if (sharded != nullptr) {
        sharded->set_gradient_sync(to);
      }
    };
    switch (letter) {
      case 'F': loss = model.loss(forwards++, rank, ranks); break;
      case 'B': loss.backward(); break;
      case 'S': step(); break;
      case 'O': zero(); break;
      case 'Z': model.zero_grad(); break;
      case 'z': model.zero_grad(/*set_to_none=*/false); break;
      case 'H': model.a->zero_grad(); break;
      case 'A': sync(GradientSync::kDeferAll); break;
      case 'R': sync(GradientSync::kDeferReplicate); break;
      case 'E': sync(GradientSync::kEveryBackward); break;
      default: FAIL() << letter;
    }
  }
};

/// In the order in which programs have it: before a forward, between forward and backward, after a
/// step; twice; for a part of the model; while gradients accumulate or wait; before a step, which
/// then has nothing to do; in zeros.
const std::vector<std::string> kPrograms = {
    "ZFBSZFBSZFBS", "FZBSFZBSFZBS", "FBSZFBSZFBSZ", "FBSZZFBSOZFBS",  "FBSHFBSHFBS",
    "FBFBSZFBHFBS", "AFBZFBEFBS",   "AFBHEFBSZFBS", "RFBHFBEFBSZFBS", "RFBZFBEFBS",
    "FBZS",         "FBSFBHS",      "AFBZSEFBS",    "zFBSzFBSFBHzS",  "FBSAFBzEFBS"};

enum class Optimizer { kOfLibTorch, kOwn };

class ModuleGradient : public testing::TestWithParam<std::tuple<std::string, Strategy, Optimizer>> {
};

TEST_P(ModuleGradient, Fault137_TheModulesZeroGradClearsWhatTheStepTakes) {
  const std::string& letters = std::get<0>(GetParam());
  const Strategy strategy = std::get<1>(GetParam());
  const Optimizer kind = std::get<2>(GetParam());
  const auto plain = torch::optim::SGDOptions(0.1).momentum(0.9);
  Pair alone;
  torch::optim::SGD optimizer(alone.parameters(), plain);
  Program reference{
      .model = alone, .step = [&] { optimizer.step(); }, .zero = [&] { optimizer.zero_grad(); }};
  for (char letter : letters) {
    reference.run(letter);
  }
  run_threads(strategy == Strategy::kHybrid ? 4 : 2, [&](const World& world) {
    const auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, options_of(strategy, world));
    torch::optim::SGD torchs(sharded.parameters(), plain);
    optim::SGD own(sharded, {.lr = 0.1, .momentum = 0.9});
    Program program{.model = *model, .rank = world.rank(), .ranks = world.size()};
    program.sharded = &sharded;
    program.step = [&] { kind == Optimizer::kOwn ? own.step() : (void)torchs.step(); };
    program.zero = [&] { torchs.zero_grad(); };
    for (std::size_t i = 0; i < letters.size(); ++i) {
      SCOPED_TRACE(letters.substr(0, i + 1));
      program.run(letters[i]);
    }
    const auto whole = sharded.full_parameters();
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_LE((model->parameters()[i] - alone.parameters()[i]).abs().max().item<double>(), 1e-14)
          << letters << ", parameter " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Programs, ModuleGradient,
    testing::Combine(testing::ValuesIn(kPrograms),
                     testing::Values(Strategy::kFullShard, Strategy::kReplicate, Strategy::kHybrid),
                     testing::Values(Optimizer::kOfLibTorch, Optimizer::kOwn)));

TEST(ModuleGradients, Fault137_NothingThatReadsAGradientSeesOneThatWasCleared) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
    const auto backward = [&] { model->loss(0, world.rank(), world.size()).backward(); };
    backward();
    EXPECT_GT(grad_norm(sharded), 0);
    model->zero_grad();
    EXPECT_FALSE(model->a->weight.grad().defined());
    EXPECT_EQ(grad_norm(sharded), 0);
    backward();
    model->zero_grad();
    EXPECT_EQ(clip_grad_norm_(sharded, 1.0), 0);
    backward();
    model->zero_grad();
    EXPECT_FALSE(sharded.parameters()[0].grad().defined());
    // One that the program puts into a shard afterwards stays.
    backward();
    model->zero_grad();
    const at::Tensor shard = sharded.parameters()[0];
    shard.mutable_grad() = torch::full_like(shard, 2.0);
    EXPECT_TRUE(shard.grad().defined());
    EXPECT_FALSE(sharded.parameters()[1].grad().defined());
  });
}

TEST(ModuleGradients, Fault137_AfterABackwardThatDiedGradientsAreThoseOfTheNext) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Pair>();
    Sharded sharded = fully_shard(model, world, options_of(Strategy::kFullShard, world));
    const auto loss = [&] { return model->loss(0, world.rank(), world.size()); };
    loss().backward();
    const at::Tensor expected = sharded.parameters()[0].grad().clone();
    model->zero_grad();
    const at::Tensor broken = loss();
    bool breaks = true;
    model->a->bias.register_hook([&](const at::Tensor&) -> void {
      if (breaks) {
        throw std::runtime_error("a hook of the program");
      }
    });
    const at::Tensor again = loss();
    EXPECT_THAT(error_of([&] { again.backward(); }), HasSubstr("a hook of the program"));
    breaks = false;
    loss().backward();
    EXPECT_TRUE(torch::equal(sharded.parameters()[0].grad(), expected));
  });
}

/// Adds one to every element of the weight by a gradient of the program's own, at rate 1.
struct Assigned {
  explicit Assigned(const World& world)
      : sharded(fully_shard(model, world, test_options({}))), optimizer(sharded.parameters(), 1.0) {
    before = value();
  }
  at::Tensor value() const {
    const auto whole = sharded.full_parameters();
    return model->weight.detach().clone();
  }
  void assign() const { model->weight.mutable_grad() = -torch::ones_like(model->weight); }

  nn::Linear model = nn::Linear(3, 2);
  Sharded sharded;
  torch::optim::SGD optimizer;
  at::Tensor before;
};

TEST(ModuleGradients, Fault138_AGradientThatWasAssignedToTheModuleIsRefusedByEveryReader) {
  struct Reader {
    const char* what;
    std::function<void(Assigned& of)> read;
  };
  const std::vector<Reader> readers = {
      {"LibTorch's step", [](Assigned& of) { of.optimizer.step(); }},
      {"a step of this library", [](Assigned& of) { optim::AdamW(of.sharded).step(); }},
      {"clipping", [](Assigned& of) { clip_grad_norm_(of.sharded, 1.0); }},
      {"the next backward", [](Assigned& of) { of.model(torch::ones({1, 3})).sum().backward(); }}};
  for (const bool was_trained : {false, true}) {
    for (const Reader& reader : readers) {
      SCOPED_TRACE(reader.what);
      run_threads(2, [&](const World& world) {
        Assigned of(world);
        if (was_trained) {
          of.model(torch::ones({1, 3})).sum().backward();
        }
        of.assign();
        const std::string error = error_of([&] { reader.read(of); });
        EXPECT_THAT(error, HasSubstr("\"weight\""));
        EXPECT_THAT(error, HasSubstr("(weight * gradient).sum().backward()"));
        EXPECT_TRUE(torch::equal(of.value(), of.before));
        of.sharded.zero_grad();  // which takes it out
        EXPECT_EQ(error_of([&] { of.optimizer.step(); }), "no error");
      });
    }
  }
}

TEST(ModuleGradients, Fault138_TheWayThatTheErrorNamesTrainsWithTheGradient) {
  run_threads(2, [](const World& world) {
    Assigned of(world);
    const at::Tensor gradient = -torch::ones({2, 3}) * (world.rank() == 0 ? 0.5 : 1.5);
    (of.model->weight * gradient).sum().backward();
    of.optimizer.step();
    EXPECT_TRUE(torch::allclose(of.value(), of.before + 1, 0, 1e-6));  // the mean over the ranks
  });
}

}  // namespace
}  // namespace fsdp::test
