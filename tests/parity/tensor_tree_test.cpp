// SPDX-License-Identifier: Apache-2.0
/// A tree of names and tensors in a module's place, and what programs in other languages do to the
/// tensors that they hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 6;

/// A module as another language would describe it.
TensorTree tree_of(const torch::nn::Module& module) {
  TensorTree tree;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    tree.modules.push_back(item.key());
  }
  for (const auto& item : module.named_parameters()) {
    tree.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tree.buffers.push_back({item.key(), item.value()});
  }
  return tree;
}

Chain make_chain(at::ScalarType dtype = at::kDouble) {
  Chain model(2, kWidth);
  model->to(dtype);
  const torch::NoGradGuard no_grad;  // threads share a generator: the same values each time
  for (at::Tensor& parameter : model->parameters()) {
    parameter.copy_(torch::arange(parameter.numel()).sin().view_as(parameter));
  }
  return model;
}

Options links(std::vector<std::string> names = {"link0", "link1"}) {
  return test_options(units_listed(std::move(names)));
}

at::Tensor batch_of(const World& world) {
  return torch::arange(2 * kWidth, torch::kDouble).add(world.rank()).cos().view({2, kWidth});
}

/// Weights after some steps.
std::vector<at::Tensor> train(Chain& model, Sharded sharded) {
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    model->forward(batch_of(sharded.world())).square().sum().backward();
    clip_grad_norm_(sharded, 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto full = sharded.full_parameters();
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) {
    weights.push_back(parameter.detach().clone());
  }
  return weights;
}

TEST(TensorTree, TrainsAsTheModuleThatItStandsFor) {
  run_threads(2, [](World world) {
    Chain as_module = make_chain(), as_tree = make_chain();
    Sharded of_module = fully_shard(as_module, world, test_options(chain_units()));
    Sharded of_tree = fully_shard(tree_of(*as_tree), world, links());
    ASSERT_EQ(of_tree.report().units.size(), of_module.report().units.size());
    EXPECT_EQ(of_tree.report().promise, of_module.report().promise);
    const std::vector<at::Tensor> expected = train(as_module, of_module);
    const std::vector<at::Tensor> actual = train(as_tree, of_tree);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
    EXPECT_EQ(of_tree.report().counters.gathers, of_module.report().counters.gathers);
    EXPECT_EQ(of_tree.report().counters.reduce_bytes, of_module.report().counters.reduce_bytes);
  });
}

TEST(TensorTree, TiedWeightsAreOneUnderAllNames) {
  const at::Tensor weight = torch::ones({3, 3}).requires_grad_();
  const TensorTree tree{.modules = {"in", "out"},
                        .parameters = {{"in.weight", weight}, {"out.weight", weight}}};
  run_threads(1, [&](World world) {
    const Sharded sharded = fully_shard(tree, world, test_options({}));
    ASSERT_EQ(sharded.named_parameters().size(), 1U);
    EXPECT_THAT(sharded.named_parameters()[0].aliases, testing::ElementsAre("out.weight"));
  });
}

TEST(TensorTree, WhatIsNoTreeIsRefusedByName) {
  const at::Tensor weight = torch::ones({3});
  const auto refusal = [](TensorTree tree, Options options = test_options({})) {
    return error_of(
        [&] { run_threads(1, [&](const World& world) { fully_shard(tree, world, options); }); });
  };
  EXPECT_THAT(refusal({.parameters = {{"a.weight", weight}}}),
              HasSubstr("parameter \"a.weight\" is in no module of the tree: \"a\""));
  EXPECT_THAT(refusal({.parameters = {{"w", weight}, {"w", torch::ones({3})}}}),
              HasSubstr("name \"w\" for more than one tensor"));
  EXPECT_THAT(refusal({.parameters = {{"w", weight}}, .buffers = {{"b", {}}}}),
              HasSubstr("buffer \"b\" of the tree is no tensor"));
  EXPECT_THAT(refusal({}), HasSubstr("no parameters"));
  EXPECT_THAT(refusal({.modules = {"layer"}, .parameters = {{"layer.w", weight}}},
                      test_options(units_of<torch::nn::Linear>())),
              HasSubstr("has names and no C++ types: use units_matching()"));
  EXPECT_THAT(
      refusal({.modules = {"layer"}, .parameters = {{"layer.w", weight}}}, links({"layers"})),
      HasSubstr("no module is called \"layers\""));
}

/// What Python's register_hook() and register_post_accumulate_grad_hook() do to a tensor.
void take_hooks_off(const at::Tensor& tensor) {
  torch::autograd::impl::clear_hooks(tensor);
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, nullptr);
}

TEST(TensorTree, Fault163_HooksThatAreTakenOffLoseNoGradient) {
  run_threads(2, [](World world) {
    Chain plain = make_chain(), hooked = make_chain();
    Sharded of_plain = fully_shard(plain, world, test_options(chain_units()));
    Sharded of_hooked = fully_shard(tree_of(*hooked), world, links());
    for (const at::Tensor& parameter : hooked->parameters()) {
      take_hooks_off(parameter);
    }
    const std::vector<at::Tensor> expected = train(plain, of_plain);
    const std::vector<at::Tensor> actual = train(hooked, of_hooked);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  });
}

TEST(TensorTree, Fault163_HooksThatAreTakenOffLoseNoGradientAfterAScopeInAnotherType) {
  run_threads(2, [](World world) {
    Chain model = make_chain(at::kFloat);
    Options options = links();
    options.precision.param = at::kBFloat16;
    Sharded sharded = fully_shard(tree_of(*model), world, options);
    const auto take_off = [&] {
      for (const at::Tensor& parameter : model->parameters()) {
        take_hooks_off(parameter);
      }
    };
    take_off();
    for (int step = 0; step < 2; ++step) {
      {
        const auto full = sharded.full_parameters();
      }  // float32 inside, bfloat16 after
      take_off();
      model->forward(batch_of(world).to(at::kFloat)).square().sum().backward();
      for (const NamedShard& parameter : sharded.named_parameters()) {
        ASSERT_TRUE(parameter.shard.grad().defined()) << parameter.name << ", step " << step;
      }
      sharded.zero_grad();
    }
  });
}

TEST(TensorTree, Fault162_ARawPointerOfAFreedWeightIsRefusedAlsoThroughNumpysQuestions) {
  run_threads(2, [](World world) {
    Chain model = make_chain();
    Options options = links();
    options.memory.store = Store::kSlots;
    const Sharded sharded = fully_shard(tree_of(*model), world, options);
    const std::int64_t gathers = sharded.report().counters.gathers;
    const at::Tensor weight = model->first->weight.detach().resolve_conj().resolve_neg();
    EXPECT_EQ(sharded.report().counters.gathers, gathers);
    EXPECT_THAT(error_of([&] { (void)weight.data_ptr(); }), HasSubstr("is not gathered now"));
  });
}

}  // namespace
