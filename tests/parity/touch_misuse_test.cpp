// SPDX-License-Identifier: Apache-2.0
/// What cannot be right is refused, with a message that names the parameter and the right call.
#include <ATen/autocast_mode.h>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

void expect_error(const std::function<void()>& body, const std::vector<std::string>& parts) {
  const std::string error = error_of(body);
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos) << "no \"" << part << "\" in: " << error;
  }
}

struct Edit {
  const char* name;
  std::function<void(const at::Tensor&)> apply;
};

/// All ways of changing a weight in place; without an effect on the sum they cannot hide.
std::vector<Edit> edits() {
  return {
      {"data().mul_", [](const at::Tensor& w) { w.data().mul_(2.0); }},
      {"detach().add_", [](const at::Tensor& w) { w.detach().add_(1.0); }},
      {"copy_", [](const at::Tensor& w) { w.copy_(at::full_like(w, 3.0)); }},
      {"fill_ through a view", [](const at::Tensor& w) { w.view({-1}).slice(0, 1, 5).fill_(7.0); }},
      {"out=",
       [](const at::Tensor& w) {
         at::Tensor dst = w.detach();
         at::add_out(dst, at::ones({6, 4}, at::kDouble), at::ones({6, 4}, at::kDouble));
       }},
      {"normal_", [](const at::Tensor& w) { w.normal_(5.0, 0.1); }},
      {"_foreach_add_", [](const at::Tensor& w) { at::_foreach_add_(std::vector{w}, 1.5); }},
  };
}

TEST(TouchMisuse, EditsOutsideFullParametersAreRefused) {
  run_threads(2, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    torch::NoGradGuard no_grad;
    const at::Tensor w = module->first->weight;
    const at::Tensor before = w.clone();
    for (const Edit& edit : edits()) {
      SCOPED_TRACE(edit.name);
      expect_error([&] { edit.apply(w); }, {"writes", "first_weight", "full_parameters", "shards"});
      EXPECT_TRUE(at::equal(w, before));
    }
    expect_error([&] { w.t_(); }, {"writes", "first_weight"});
    expect_error([&] { w.detach().resize_({7}); }, {"writes", "first_weight"});
    // A scope that only reads is no licence either.
    const auto whole = sharded.full_parameters();
    for (const Edit& edit : edits()) {
      SCOPED_TRACE(edit.name);
      expect_error([&] { edit.apply(w); }, {"writes", "first_weight"});
    }
  });
}

TEST(TouchMisuse, EditsInsideFullParametersReachTheShards) {
  for (const Edit& edit : edits()) {
    SCOPED_TRACE(edit.name);
    at::manual_seed(1);
    const TwoLayers plain = two_layers();
    const at::Tensor x = random({3, 4});
    const at::Tensor initial = plain->first->weight.detach().clone();
    {
      torch::NoGradGuard no_grad;
      at::manual_seed(2);
      edit.apply(plain->first->weight);
    }
    const at::Tensor expected = plain->first->forward(x).detach();
    run_threads(1, [&](const World& world) {
      const TwoLayers module = two_layers();
      {
        torch::NoGradGuard no_grad;
        module->first->weight.copy_(initial);
        module->first->bias.copy_(plain->first->bias);
      }
      const Sharded sharded = shard_each(*module, world);
      loss_of(module->forward(x)).backward();
      {
        torch::NoGradGuard no_grad;
        const auto whole = sharded.full_parameters(/*writeback=*/true);
        at::manual_seed(2);
        edit.apply(module->first->weight);
      }
      EXPECT_TRUE(at::equal(module->first->forward(x), expected));
      loss_of(module->forward(x)).backward();
    });
  }
}

TEST(TouchMisuse, OptimizersOnTheModulesParametersThrow) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    const Tensors parameters = module->parameters();
    std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
    optimizers.push_back(std::make_unique<torch::optim::SGD>(parameters, 0.1));
    optimizers.push_back(std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1)));
    optimizers.push_back(std::make_unique<torch::optim::Adam>(parameters));
    optimizers.push_back(std::make_unique<torch::optim::AdamW>(parameters));
    optimizers.push_back(std::make_unique<torch::optim::RMSprop>(parameters));
    optimizers.push_back(std::make_unique<torch::optim::Adagrad>(parameters));
    const at::Tensor x = random({3, 4});
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      SCOPED_TRACE(i);
      optimizers[i]->zero_grad();
      loss_of(module->forward(x)).backward();
      expect_error([&] { optimizers[i]->step(); }, {"sharded.parameters()"});
    }
    expect_error([&] { torch::nn::utils::clip_grad_norm_(module->parameters(), 1.0); },
                 {"fsdp::clip_grad_norm_(sharded"});
    expect_error([&] { torch::nn::utils::clip_grad_value_(module->parameters(), 1.0); },
                 {"fsdp::clip_grad_norm_(sharded"});
    expect_error([&] { (void)module->first->weight.grad().sum(); }, {"first_weight"});
  });
}

TEST(TouchMisuse, EmbeddingsWithMaxNormAreRefused) {
  run_threads(1, [](const World& world) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).max_norm(1.0)));
    expect_error([&] { fully_shard(model, world, strict_options()); }, {"\"0\"", "max_norm"});
    torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(5, 3).max_norm(1.0));
    expect_error([&] { fully_shard(bag, world, strict_options()); }, {"max_norm"});
  });
}

TEST(TouchMisuse, ConversionAfterShardingThrowsInTheNextStep) {
  run_threads(2, [](const World& world) {
    const auto module = std::make_shared<TwoLayersImpl>();  // fp32
    const Sharded sharded = shard_each(*module, world);
    module->to(torch::kDouble);
    expect_error([&] { loss_of(module->forward(random({3, 4}))).backward(); },
                 {"no longer lives", "module->to()"});
  });
}

TEST(TouchMisuse, OneParameterTakenOutThrowsInTheNextForward) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    const at::Tensor x = random({3, 4});
    loss_of(module->forward(x)).backward();
    module->second->bias.set_data(random({3}));
    expect_error([&] { module->forward(x); }, {"second_bias", "no longer lives"});
  });
}

TEST(TouchMisuse, AutocastIsRefused) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    expect_error([&] { module->forward(random({3, 4})); }, {"first_", "autocast"});
    at::autocast::set_autocast_enabled(at::kCPU, false);
    module->forward(random({3, 4}));
  });
}

TEST(TouchMisuse, AnOperatorOverMoreUnitsThanSlotsNamesThemAndTheOption) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    expect_error(
        [&] {
          (void)at::cat(at::TensorList{module->first->bias, module->second->bias,
                                       module->first->bias.detach(),
                                       module->first->weight.flatten()});
        },
        {"aten::cat", "first_weight", "first_bias", "second_bias", "extra_slots to 1"});
    module->forward(random({3, 4}));
  });
}

TEST(TouchMisuse, WeightsWithoutTheirShardedThrow) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    {
      const Sharded gone = shard_each(*module, world);
    }
    expect_error([&] { module->forward(random({3, 4})); }, {"first_", "fsdp::Sharded is gone"});
  });
}

}  // namespace
}  // namespace fsdp::test
