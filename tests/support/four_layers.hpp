// SPDX-License-Identifier: Apache-2.0
/// Four small layers and a parameter of the root, with inputs that differ by rank and step.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace fsdp::test {

struct FourLayers : torch::nn::Module {
  FourLayers() : scale(register_parameter("scale", torch::ones({3}))) {
    for (const char* name : {"a", "b", "c", "d"}) {
      layers.push_back(register_module(name, torch::nn::Linear(3, 3)));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (torch::nn::Linear& layer : layers) {
      x = torch::tanh(layer(x));
    }
    return x * scale;
  }
  at::Tensor loss(const at::Tensor& x) { return forward(x).square().sum(); }
  std::vector<torch::nn::Linear> layers;
  at::Tensor scale;
};

inline at::Tensor input(int rank, int step) {
  return torch::arange(12, torch::kDouble)
      .mul(0.37)
      .add(rank * 1.3 + step * 0.7)
      .sin()
      .view({4, 3});
}

}  // namespace fsdp::test
