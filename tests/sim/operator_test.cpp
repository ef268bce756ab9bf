// SPDX-License-Identifier: Apache-2.0
/// Operators of the simulated device give what the CPU's give, in any mode and without a report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/sim/sim.hpp"

namespace fsdp::test {
namespace {

/// What is computed on a device, from seeded numbers that are made on the CPU.
struct Computation {
  std::string name;
  std::function<std::vector<at::Tensor>(c10::Device)> run;
  double tolerance = 0;
};

at::Tensor numbers(at::IntArrayRef sizes, c10::Device device, at::ScalarType dtype = at::kFloat) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) {
    numel *= size;
  }
  return torch::arange(numel, torch::kDouble).mul(0.37).sin().view(sizes).to(dtype).to(device);
}

/// Loss and gradients of a module on some input.
template <class Module, class Forward>
std::vector<at::Tensor> losses_of(Module module, const at::Tensor& x, Forward forward) {
  module->to(x.device());
  at::Tensor loss = forward(module, x);
  loss.backward();
  std::vector<at::Tensor> results = {loss};
  for (const at::Tensor& parameter : module->parameters()) {
    results.push_back(parameter.grad());
  }
  return results;
}

/// Twenty steps of a small block with clipping and AdamW, in float64.
std::vector<at::Tensor> train(c10::Device device) {
  torch::manual_seed(3);
  torch::nn::Sequential block(
      torch::nn::Embedding(11, 8), torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
      torch::nn::Linear(8, 16), torch::nn::GELU(), torch::nn::Linear(16, 11));
  block->to(torch::kDouble);
  block->to(device);
  const at::Tensor tokens = torch::arange(12).remainder(11).to(device);
  torch::optim::AdamW optimizer(block->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(block->forward(tokens), tokens).backward();
    torch::nn::utils::clip_grad_norm_(block->parameters(), 1.0);
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : block->parameters()) {
    parameters.push_back(parameter.detach());
  }
  return parameters;
}

std::vector<Computation> computations() {
  std::vector<Computation> all;
  const auto add = [&](std::string name, double tolerance,
                       std::function<std::vector<at::Tensor>(c10::Device)> run) {
    all.push_back({.name = std::move(name), .run = std::move(run), .tolerance = tolerance});
  };
  add("ElementWiseAndInPlace", 0, [](c10::Device device) {
    at::Tensor x = numbers({4, 6}, device), y = numbers({6}, device);
    at::Tensor z = (x + y).mul_(2).sub(x.exp()).clamp_(-1, 1);
    z.narrow(0, 1, 2).zero_();
    return std::vector{z, x > y, x.t().contiguous(), torch::where(x > 0, x, z)};
  });
  add("OutArgumentsAlsoEmptyOnes", 0, [](c10::Device device) {
    at::Tensor x = numbers({4, 4}, device), out = torch::empty({0}, x.options()),
               sized = torch::empty({4, 4}, x.options());
    torch::mm_out(out, x, x);
    torch::add_out(sized, x, x);
    return std::vector{out, sized};
  });
  add("Lists", 0, [](c10::Device device) {
    std::vector<at::Tensor> list = {numbers({3}, device), numbers({5}, device)};
    at::_foreach_mul_(list, 3.0);
    return std::vector{torch::cat(list), torch::stack({list[0], list[0]}), list[1]};
  });
  add("IndicesScatterSort", 0, [](c10::Device device) {
    at::Tensor x = numbers({6, 3}, device);
    const at::Tensor rows = torch::tensor({4, 0, 2}).to(device);
    at::Tensor y = torch::zeros({6, 3}, x.options()).index_add_(0, rows, x.narrow(0, 0, 3));
    return std::vector{x.index({rows}), y, std::get<0>(x.sort(0)), x.nonzero(), x.cumsum(0)};
  });
  add("ReductionsAndLinearAlgebra", 1e-12, [](c10::Device device) {
    at::Tensor x = numbers({4, 4}, device, at::kDouble);
    return std::vector{x.sum(),
                       x.mean(1),
                       x.norm(),
                       torch::linalg_inv(x.mm(x.t()).add(torch::eye(4, x.options()))),
                       torch::einsum("ij,kj->ik", {x, x}),
                       x.softmax(1)};
  });
  add("LowPrecisionAndComplex", 0, [](c10::Device device) {
    at::Tensor x = numbers({4, 4}, device, at::kBFloat16), h = numbers({4}, device, at::kHalf);
    at::Tensor c = torch::fft_fft(numbers({8}, device));
    return std::vector{x.mm(x), h + h, torch::view_as_real(c.conj().resolve_conj()),
                       x.to(at::kFloat)};
  });
  add("RandomNumbersOfOneSeed", 0, [](c10::Device device) {
    torch::manual_seed(5);
    at::Tensor x = torch::empty({16}, at::TensorOptions(device)).normal_();
    return std::vector{x, torch::rand({4}, x.options()), torch::dropout(x.abs() + 1, 0.5, true)};
  });
  add("ResizeAndSet", 0, [](c10::Device device) {
    at::Tensor x = numbers({4}, device), y = torch::empty({0}, x.options());
    x.resize_({8});
    x.narrow(0, 4, 4).fill_(7);
    y.set_(x.narrow(0, 2, 4));
    return std::vector{x, y};
  });
  add("Convolution", 1e-6, [](c10::Device device) {
    torch::manual_seed(1);
    torch::nn::Sequential net(
        torch::nn::Conv2d(2, 3, 3), torch::nn::BatchNorm2d(3), torch::nn::MaxPool2d(2),
        torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(3, 2, 2)));
    return losses_of(net, numbers({2, 2, 8, 8}, device), [](auto& module, const at::Tensor& x) {
      return module->forward(x).square().mean();
    });
  });
  add("Recurrent", 1e-5, [](c10::Device device) {
    torch::manual_seed(1);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true));
    return losses_of(lstm, numbers({5, 2, 3}, device), [](auto& module, const at::Tensor& x) {
      return std::get<0>(module->forward(x)).square().mean();
    });
  });
  add("Attention", 2e-5, [](c10::Device device) {
    torch::manual_seed(1);
    torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0));
    return losses_of(layer, numbers({5, 2, 8}, device), [](auto& module, const at::Tensor& x) {
      return module->forward(x).square().mean();
    });
  });
  add("TwentyStepsOfTraining", 1e-10, train);
  return all;
}

class Operators : public testing::TestWithParam<Computation> {
 protected:
  static void SetUpTestSuite() { sim::start({.mode = sim::mode_of_environment()}); }
};

TEST_P(Operators, GiveWhatTheCpusGive) {
  sim::take_reports();
  const std::vector<at::Tensor> expected = GetParam().run(at::kCPU);
  const std::vector<at::Tensor> results = GetParam().run(sim::device());
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].device(), sim::device());
    const at::Tensor result = results[i].cpu();
    ASSERT_EQ(result.sizes(), expected[i].sizes());
    EXPECT_TRUE(torch::allclose(result, expected[i], 0, GetParam().tolerance, true))
        << i << ": " << result << expected[i];
  }
  c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).synchronizeDevice(0);
  for (const sim::Report& report : sim::take_reports()) {
    ADD_FAILURE() << report.text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Operators, testing::ValuesIn(computations()),
                         [](const auto& info) { return info.param.name; });

TEST(SimOperators, RefuseTensorsOfTheCpuBesideThoseOfTheDevice) {
  sim::start({.mode = sim::mode_of_environment()});
  const at::Tensor here = torch::ones({3}), there = here.to(sim::device());
  EXPECT_THROW(there + here, c10::Error);
  const std::vector<at::Tensor> on_device = {there};
  EXPECT_THROW(at::_fused_adamw_(on_device, on_device, on_device, on_device, {},
                                 /*state_steps=*/std::vector{torch::ones({})}, 0.1, 0.9, 0.99, 0,
                                 1e-8, /*amsgrad=*/false, /*maximize=*/false),
               c10::Error);
  EXPECT_EQ((there * torch::tensor(2.0F)).sum().item<float>(), 6);
}

}  // namespace
}  // namespace fsdp::test
