// SPDX-License-Identifier: Apache-2.0
/// Whatever can be seen to be the wrong way throws, and its text has the call to use instead.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

struct Pair : nn::Module {
  Pair() : a(register_module("a", nn::Linear(4, 4))), b(register_module("b", nn::Linear(4, 4))) {}
  at::Tensor forward(at::ScalarType type = at::kFloat) {
    return b->forward(torch::tanh(a->forward(torch::ones({2, 4}, type)))).sum();
  }
  nn::Linear a, b;
};

Options quiet() {
  Options options{.units = units_of<nn::Linear>()};
  options.debug.print_promise = false;
  return options;
}

/// A module that is sharded, with what a program would have beside it.
struct Trained {
  explicit Trained(const World& of, const Options& options = quiet())
      : world(of), sharded(fully_shard(model, world, options)) {}
  void backward() { model->forward().backward(); }

  const World& world;
  std::shared_ptr<Pair> model = std::make_shared<Pair>();
  Sharded sharded;
};

struct Misuse {
  const char* what;
  std::function<void(const World& world)> act;
  const char* right_way;  ///< stands in the error
};

/// Before and while sharding.
std::vector<Misuse> when_sharding() {
  return {
      {"a module twice",
       [](const World& world) {
         Trained trained(world);
         fully_shard(trained.model, world, quiet());
       },
       "keep that Sharded"},
      {"after the first backward",
       [](const World& world) {
         auto model = std::make_shared<Pair>();
         model->forward().backward();
         fully_shard(model, world, quiet());
       },
       "shard before the first backward, or call zero_grad()"},
      {"a weight that is assigned, not tied",
       [](const World& world) {
         auto model = std::make_shared<Pair>();
         model->b->weight = model->a->weight;
         fully_shard(model, world, quiet());
       },
       "fsdp::tie_weights(from, \"weight\", to, \"weight\")"},
      {"a unit by a wrong name",
       [](const World& world) {
         Options options = quiet();
         options.units = units_listed({"c"});
         fully_shard(std::make_shared<Pair>(), world, options);
       },
       "named_modules()"},
      {"replicas without a mesh",
       [](const World& world) {
         Options options = quiet();
         options.strategy = Strategy::kHybrid;
         fully_shard(std::make_shared<Pair>(), world, options);
       },
       "Options::mesh"},
      {"float16 without a scaler",
       [](const World& world) {
         Options options = quiet();
         options.precision = {.param = at::kHalf};
         Trained(world, options).backward();
       },
       "fsdp::LossScaler"},
  };
}

/// The module's own tensors once its weights live in shards.
std::vector<Misuse> with_weights() {
  return {
      {"converting the module",
       [](const World& world) {
         Trained trained(world);
         trained.model->to(torch::kDouble);
         trained.model->forward(at::kDouble).backward();
       },
       "Convert the module before sharding it"},
      {"editing a weight",
       [](const World& world) {
         Trained trained(world);
         torch::NoGradGuard no_grad;
         trained.model->a->weight.mul_(2);
       },
       "full_parameters(/*writeback=*/true)"},
      {"weights of a module whose Sharded is gone",
       [](const World& world) {
         std::shared_ptr<Pair> model = Trained(world).model;
         model->forward();
       },
       "keep the Sharded alive"},
      {"autocast",
       [](const World& world) {
         Trained trained(world);
         at::autocast::set_autocast_enabled(at::kCPU, true);
         const std::string error = error_of([&] { trained.model->forward(); });
         at::autocast::set_autocast_enabled(at::kCPU, false);
         throw std::runtime_error(error);
       },
       "Switch autocast off"},
      {"leaving out a unit that is not optional",
       [](const World& world) {
         Trained trained(world);
         trained.sharded.participate(*trained.model->a);
       },
       "on all ranks"},
  };
}

/// Optimizers, clipping, scaling.
std::vector<Misuse> with_gradients() {
  return {
      {"an optimizer on the module's parameters",
       [](const World& world) {
         Trained trained(world);
         torch::optim::SGD optimizer(trained.model->parameters(), 0.1);
         trained.backward();
         optimizer.step();
       },
       "build the optimizer on sharded.parameters()"},
      {"clipping the module's gradients",
       [](const World& world) {
         Trained trained(world);
         trained.backward();
         nn::utils::clip_grad_norm_(trained.model->parameters(), 1.0);
       },
       "fsdp::clip_grad_norm_(sharded, max_norm)"},
      {"clipping one rank's part by its own norm",
       [](const World& world) {
         Trained trained(world);
         trained.backward();
         nn::utils::clip_grad_norm_(trained.sharded.parameters(), 1.0);
       },
       "fsdp::clip_grad_norm_(sharded, max_norm, p)"},
      {"measuring one rank's part",
       [](const World& world) {
         Trained trained(world);
         trained.backward();
         trained.sharded.parameters()[0].grad().norm();
       },
       "fsdp::grad_norm(sharded, p)"},
      {"a step while gradients wait",
       [](const World& world) {
         Trained trained(world);
         torch::optim::SGD optimizer(trained.sharded.parameters(), 0.1);
         trained.backward();
         trained.sharded.set_gradient_sync(GradientSync::kDeferAll);
         trained.backward();
         optimizer.step();
       },
       "set_gradient_sync(GradientSync::kEveryBackward)"},
      {"a scaler that is not told of the step",
       [](const World& world) {
         Options options = quiet();
         options.precision = {.param = at::kHalf};
         Trained trained(world, options);
         LossScaler scaler(trained.sharded);
         scaler.scale(trained.model->forward()).backward();
         scaler.unscale_();
         scaler.unscale_();
       },
       "call update() after each step"},
      {"a checkpoint of an optimizer on the module's parameters",
       [](const World& world) {
         Trained trained(world);
         torch::optim::AdamW optimizer({torch::zeros({4}, torch::requires_grad())});
         checkpoint::state_of(optimizer, trained.sharded);
       },
       "build it on sharded.parameters()"},
      {"averages that are updated while they are the weights",
       [](const World& world) {
         Trained trained(world);
         optim::Ema ema(trained.sharded, 0.9);
         const auto scope = ema.swap_in();
         ema.update();
       },
       "end the scope first"},
  };
}

void expect_right_way(const std::vector<Misuse>& misuses) {
  for (const Misuse& misuse : misuses) {
    run_threads(2, [&](const World& world) {
      SCOPED_TRACE(misuse.what);
      EXPECT_THAT(error_of([&] { misuse.act(world); }), HasSubstr(misuse.right_way));
    });
  }
}

TEST(RightWay, Fault136_WhenShardingTheErrorHasTheCallToUse) { expect_right_way(when_sharding()); }

TEST(RightWay, Fault136_WithWeightsTheErrorHasTheCallToUse) { expect_right_way(with_weights()); }

TEST(RightWay, Fault136_WithGradientsTheErrorHasTheCallToUse) {
  expect_right_way(with_gradients());
}

}  // namespace
}  // namespace fsdp::test
