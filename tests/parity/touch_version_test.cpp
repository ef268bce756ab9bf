// SPDX-License-Identifier: Apache-2.0
/// Whoever changes the shards, and however, the next operator sees it.
#include "fsdp/engine/shard_access.hpp"
#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

/// An evaluation leaves its last units gathered; then the shards change.
void expect_fresh_weights(const std::function<void(Sharded&)>& change) {
  run_threads(2, [&](const World& world) {
    const TwoLayers module = two_layers();
    Sharded sharded = shard_each(*module, world, /*units_at_once=*/4);
    const at::Tensor x = at::ones({3, 4}, at::kDouble);
    loss_of(module->forward(x)).backward();
    torch::NoGradGuard no_grad;
    module->forward(x);
    ASSERT_GT(sharded.report().unsharded_numel, 0);
    change(sharded);
    const at::Tensor output = module->forward(x);
    at::Tensor expected;
    {
      const auto whole = sharded.full_parameters();
      const auto of = [](const torch::nn::Linear& layer, const at::Tensor& in) {
        return at::linear(in, layer->weight, layer->bias);
      };
      expected = of(module->second, of(module->first, x).tanh());
    }
    EXPECT_TRUE(at::equal(output, expected));
  });
}

TEST(TouchVersion, NextForwardSeesAnOptimizersStep) {
  expect_fresh_weights([](Sharded& sharded) {
    torch::optim::SGD(sharded.parameters(), 0.5).step();  // writes through data()
  });
  expect_fresh_weights([](Sharded& sharded) {
    torch::optim::SGD(sharded.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)).step();
  });
  expect_fresh_weights([](Sharded& sharded) { torch::optim::Adam(sharded.parameters()).step(); });
  expect_fresh_weights([](Sharded& sharded) { torch::optim::AdamW(sharded.parameters()).step(); });
  expect_fresh_weights(
      [](Sharded& sharded) { torch::optim::RMSprop(sharded.parameters()).step(); });
  expect_fresh_weights([](Sharded& sharded) { optim::AdamW(sharded, {.lr = 0.5}).step(); });
}

TEST(TouchVersion, NextForwardSeesEditsOfShards) {
  expect_fresh_weights([](Sharded& sharded) { sharded.parameters()[0].data().zero_(); });
  expect_fresh_weights([](Sharded& sharded) { sharded.parameters()[1].detach().add_(1.0); });
  expect_fresh_weights(
      [](Sharded& sharded) { sharded.shard_access()->flats()[2].shard.fill_(0.25); });
}

TEST(TouchVersion, ChangedShardsBetweenForwardAndBackwardThrow) {
  const std::vector<std::function<void(Sharded&)>> changes = {
      [](Sharded& sharded) { torch::optim::SGD(sharded.parameters(), 0.5).step(); },
      [](Sharded& sharded) { torch::optim::Adam(sharded.parameters()).step(); },
      [](Sharded& sharded) { optim::AdamW(sharded, {.lr = 0.5}).step(); },
  };
  for (const auto& change : changes) {
    run_threads(2, [&](const World& world) {
      const TwoLayers module = two_layers();
      Sharded sharded = shard_each(*module, world);
      const at::Tensor x = at::ones({3, 4}, at::kDouble);
      for (int round = 0; round < 2; ++round) {
        loss_of(module->forward(x)).backward();
        const at::Tensor late = loss_of(module->forward(x));
        change(sharded);
        const std::string error = error_of([&] { late.backward(); });
        EXPECT_NE(error.find("between its forward and its backward"), std::string::npos) << error;
        sharded.zero_grad();
      }
      loss_of(module->forward(x)).backward();
      change(sharded);
    });
  }
}

TEST(TouchVersion, KeptGraphsOfOldWeightsThrow) {
  for (bool has_new_forward : {false, true}) {
    run_threads(2, [&](const World& world) {
      const TwoLayers module = two_layers();
      Sharded sharded = shard_each(*module, world);
      torch::optim::SGD optimizer(sharded.parameters(), 0.5);
      const at::Tensor x = at::ones({3, 4}, at::kDouble);
      const at::Tensor old = loss_of(module->forward(x));
      old.backward({}, /*retain_graph=*/true);
      optimizer.step();
      optimizer.zero_grad();
      if (has_new_forward) {
        loss_of(module->forward(x)).backward();
      }
      EXPECT_NE(error_of([&] { old.backward(); }), "");
      sharded.zero_grad();
      loss_of(module->forward(x)).backward();
    });
  }
}

TEST(TouchVersion, TrainingInsideFullParameters) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    return case_of(two_layers(), [x](TwoLayersImpl& of, const Trial& trial) -> Tensors {
      std::unique_ptr<FullParameters> whole;
      if (trial.sharded != nullptr) {
        whole = std::make_unique<FullParameters>(trial.sharded->full_parameters());
      }
      const double raw = of.first->weight.data_ptr<double>()[5];
      at::Tensor output = of.forward(x);
      loss_of(output).backward();
      return {at::tensor(raw, at::kDouble), output};
    });
  });
}

}  // namespace
}  // namespace fsdp::test
