// SPDX-License-Identifier: Apache-2.0
/// What else autograd can do with weights: graphs kept and differentiated, hooks, anomaly mode.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <sstream>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

/// A case over two layers with an input that requires a gradient.
void expect_two_layer_parity(
    const std::function<Tensors(TwoLayersImpl&, const at::Tensor&, const Trial&)>& step,
    const Traits& traits = {}) {
  expect_parity(
      [&] {
        const at::Tensor x = random({3, 4}).requires_grad_();
        return case_of(two_layers(), [x, step](TwoLayersImpl& of, const Trial& trial) {
          x.mutable_grad().reset();
          return step(of, x, trial);
        });
      },
      traits);
}

TEST(TouchAutograd, WeightsFreedBetweenForwardAndBackward) {
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x, const Trial& trial) -> Tensors {
        at::Tensor output = of.forward(x);
        trial.free_weights();
        loss_of(output).backward();
        return {output, x.grad()};
      });
}

TEST(TouchAutograd, KeptGraphWalkedTwice) {
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x, const Trial& trial) -> Tensors {
        at::Tensor output = of.forward(x);
        at::Tensor loss = loss_of(output);
        loss.backward({}, /*retain_graph=*/true);
        trial.free_weights();
        loss.backward();
        return {output, x.grad()};
      });
}

TEST(TouchAutograd, TwoForwardsThenTwoBackwards) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor a = of.forward(x), b = of.forward(x * 2);
    loss_of(a).backward();
    loss_of(b).backward();
    return {a, b, x.grad()};
  });
}

TEST(TouchAutograd, GradientPenalty) {
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x, const Trial& trial) -> Tensors {
        at::Tensor output = of.forward(x);
        at::Tensor slope = torch::autograd::grad({loss_of(output)}, {x}, {}, true, true)[0];
        trial.free_weights();
        (loss_of(output) + slope.square().sum()).backward();
        return {output, slope, x.grad()};
      });
}

TEST(TouchAutograd, BackwardThatCreatesAGraph) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor output = of.forward(x);
    loss_of(output).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor slope = x.grad();
    x.mutable_grad().reset();
    slope.square().sum().backward();
    return {output, slope, x.grad()};
  });
}

TEST(TouchAutograd, GradReturnsLocalGradientsOfWeights) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor loss = loss_of(of.forward(x));
    Tensors grads = torch::autograd::grad({loss}, of.parameters(), {}, /*retain_graph=*/true);
    loss.backward();
    grads.push_back(x.grad());
    return grads;
  });
}

TEST(TouchAutograd, HooksSeeAndChangeLocalGradients) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    Tensors seen(2);
    const unsigned first = of.first->weight.register_hook([&](const at::Tensor& grad) {
      seen[0] = grad.clone();
      return grad * 0.5;
    });
    const unsigned second = of.second->bias.register_hook(
        [&](const at::Tensor& grad) -> void { seen[1] = grad + of.second->bias; });
    at::Tensor output = of.forward(x);
    loss_of(output).backward();
    of.first->weight.remove_hook(first);
    of.second->bias.remove_hook(second);
    seen.push_back(output);
    return seen;
  });
}

TEST(TouchAutograd, HooksInstalledBeforeSharding) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    const TwoLayers module = two_layers();
    module->first->weight.register_hook([](const at::Tensor& grad) { return grad * 0.25; });
    return training_case(module, [x](TwoLayersImpl& of) { return of.forward(x); });
  });
}

TEST(TouchAutograd, AnomalyMode) {
  const Traits traits{.world_sizes = {1}, .steps = 1};  // a stack trace per operator is slow
  torch::autograd::AnomalyMode::set_enabled(true);
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
        at::Tensor output = of.first->forward(x);
        loss_of(output).backward();
        return {output, x.grad()};
      },
      traits);
  torch::autograd::AnomalyMode::set_enabled(false);
}

TEST(TouchAutograd, InferenceModeBeforeAndBetweenTraining) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor before;
    {
      c10::InferenceMode inference;
      before = of.forward(x.detach());
    }
    at::Tensor output = of.forward(x);
    loss_of(output).backward();
    return {before, output, x.grad()};
  });
}

TEST(TouchAutograd, EvaluationBetweenForwardAndBackward) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor output = of.forward(x);
    at::Tensor evaluated;
    {
      torch::NoGradGuard no_grad;
      evaluated = of.forward(x + 1);
    }
    loss_of(output).backward();
    return {output, evaluated, x.grad()};
  });
}

TEST(TouchAutograd, WeightDecayInTheLoss) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor loss = loss_of(of.forward(x));
    for (const at::Tensor& weight : of.parameters()) {
      loss = loss + 0.125 * weight.square().sum();
    }
    loss.backward();
    return {loss, x.grad()};
  });
}

TEST(TouchAutograd, FrozenParameters) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    const TwoLayers module = two_layers();
    module->first->weight.requires_grad_(false);
    module->second->bias.requires_grad_(false);
    return training_case(module, [x](TwoLayersImpl& of) { return of.forward(x); });
  });
}

TEST(TouchAutograd, ParametersWithoutGradient) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    at::Tensor output = of.first->forward(x);
    loss_of(output).backward();
    return {output, x.grad()};
  });
}

TEST(TouchAutograd, UnusedEntriesOfParameterContainers) {
  struct Containers : torch::nn::Module {
    Containers() {
      dict->insert("used", random({3}).requires_grad_());
      dict->insert("unused", random({2}).requires_grad_());
      list->append(random({4}).requires_grad_());
      register_module("dict", dict);
      register_module("list", list);
    }
    torch::nn::ParameterDict dict;
    torch::nn::ParameterList list;
  };
  run_threads(1, [](const World& world) {
    const auto module = std::make_shared<Containers>();
    const Sharded sharded = fully_shard(module, world, strict_options());
    loss_of(module->dict->get("used") * 2).backward();
    EXPECT_TRUE(sharded.parameters()[0].grad().defined() !=
                sharded.parameters()[1].grad().defined());
    EXPECT_FALSE(sharded.parameters()[2].grad().defined());
  });
}

TEST(TouchAutograd, PrintItemAndClone) {
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x, const Trial& trial) -> Tensors {
        std::ostringstream text;
        text << of.first->weight << of.second->bias;
        std::int64_t hash = 0;
        for (char letter : text.str()) {
          hash = hash * 31 % 1000003 + letter;
        }
        at::Tensor copy = of.first->weight.clone();
        const double item = of.second->weight[0][0].item<double>();
        trial.free_weights();
        at::Tensor output = of.forward(x);
        loss_of(output).backward();
        return {at::tensor(hash), copy, at::tensor(item, at::kDouble), output};
      });
}

TEST(TouchAutograd, Vmap) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
    namespace functorch = at::functorch;
    const auto level = functorch::initAndPushDynamicLayer(
        functorch::TransformType::Vmap, c10::SymInt(3), functorch::RandomnessType::Same);
    at::Tensor batched = of.forward(functorch::addBatchDim(x, 0, level));
    auto* wrapper = functorch::maybeGetBatchedImpl(batched);
    at::Tensor output = wrapper->value().movedim(wrapper->bdim(), 0);
    functorch::popDynamicLayerAndDeleteMetadata();
    loss_of(output).backward();
    return {output, x.grad()};
  });
}

void expect_parity_while_profiled(bool report_input_shapes) {
  const Traits traits{.world_sizes = {1}, .steps = 2};
  namespace profiler = torch::autograd::profiler;
  expect_two_layer_parity(
      [=](TwoLayersImpl& of, const at::Tensor& x, const Trial&) -> Tensors {
        const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, report_input_shapes,
                                              /*profile_memory=*/true);
        const std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
        profiler::prepareProfiler(config, activities);
        profiler::enableProfiler(config, activities);
        at::Tensor output = of.forward(x);
        loss_of(output).backward();
        const auto result = profiler::disableProfiler();
        EXPECT_GT(result->events().size(), 10u);
        return {output, x.grad()};
      },
      traits);
}

TEST(TouchAutograd, Profiler) { expect_parity_while_profiled(/*report_input_shapes=*/false); }

// Asked for shapes, the profiler also wants the address of every input, before the operator begins.
// A freed weight has none: LibTorch warns and leaves the event out, the numbers stay right.
TEST(TouchAutograd, ProfilerWithShapes) { expect_parity_while_profiled(true); }

}  // namespace
}  // namespace fsdp::test
